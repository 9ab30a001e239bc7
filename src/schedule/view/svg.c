/* SVG, written directly: the text stays text and boxes tell what they are when pointed at. */
#include "schedule/view/picture.h"

typedef struct svg_canvas {
    sl_canvas canvas; /* first: a pointer to it is a pointer to this */
    FILE *file;
} svg_canvas;

static FILE *file_of(sl_canvas *canvas)
{
    return ((svg_canvas *)canvas)->file;
}

/* Text between tags; it is valid UTF-8 without control characters. */
static void write_escaped(FILE *file, const char *text)
{
    for (const char *c = text; *c; c++) {
        if (*c == '<')
            fputs("&lt;", file);
        else if (*c == '&')
            fputs("&amp;", file);
        else
            fputc(*c, file);
    }
}

static void svg_box(sl_canvas *canvas, double x, double y, double width, double height, sl_rgb color, const char *tip)
{
    FILE *file = file_of(canvas);
    fprintf(file, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"#%02x%02x%02x\"", x, y, width,
            height, color.red, color.green, color.blue);
    if (tip) {
        fputs("><title>", file);
        write_escaped(file, tip);
        fputs("</title></rect>\n", file);
    } else {
        fputs("/>\n", file);
    }
}

static void svg_line(sl_canvas *canvas, double x1, double y1, double x2, double y2, double width, sl_rgb color)
{
    fprintf(file_of(canvas),
            "<line x1=\"%.2f\" y1=\"%.2f\" x2=\"%.2f\" y2=\"%.2f\" stroke-width=\"%.2f\" stroke=\"#%02x%02x%02x\"/>\n",
            x1, y1, x2, y2, width, color.red, color.green, color.blue);
}

static void svg_text(sl_canvas *canvas, double x, double y, double size, sl_align align, sl_rgb color, const char *text)
{
    static const char *const anchors[] = { "", " text-anchor=\"middle\"", " text-anchor=\"end\"" };
    FILE *file = file_of(canvas);
    fprintf(file, "<text x=\"%.2f\" y=\"%.2f\" font-size=\"%.1f\" fill=\"#%02x%02x%02x\"%s>", x, y, size, color.red,
            color.green, color.blue, anchors[align]);
    write_escaped(file, text);
    fputs("</text>\n", file);
}

sl_status sl_drawing_write_svg(const sl_drawing *drawing, const sl_view_options *options, FILE *file)
{
    (void)options;
    sl_picture picture;
    sl_picture_init(&picture, drawing);
    svg_canvas svg = { .canvas = { .box = svg_box, .line = svg_line, .text = svg_text }, .file = file };
    fprintf(file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" "
            "font-family=\"DejaVu Sans, Verdana, sans-serif\">\n"
            "<style>text { pointer-events: none }</style>\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
            picture.width, picture.height, picture.width, picture.height);
    sl_picture_draw(&picture, &svg.canvas);
    fputs("</svg>\n", file);
    return SL_OK;
}
