/* PNG and PDF through cairo. */
#include "schedule/view/picture.h"

#include <cairo-pdf.h>
#include <cairo.h>
#include <math.h>

#define MOST_PIXELS 48e6     /* of a PNG: beyond it the picture is made smaller */
#define LONGEST_SIDE 30000.0 /* of a PNG; cairo ends at 32767 */
#define LONGEST_PAGE 14400.0 /* points of a PDF page that all readers take */
#define PNG_ZOOM 1.5         /* pixels a point, if there is room */

typedef struct cairo_canvas {
    sl_canvas canvas; /* first: a pointer to it is a pointer to this */
    cairo_t *cairo;
} cairo_canvas;

static cairo_t *cairo_of(sl_canvas *canvas, sl_rgb color)
{
    cairo_t *cairo = ((cairo_canvas *)canvas)->cairo;
    cairo_set_source_rgb(cairo, color.red / 255.0, color.green / 255.0, color.blue / 255.0);
    return cairo;
}

static void cairo_box(sl_canvas *canvas, double x, double y, double width, double height, sl_rgb color, const char *tip)
{
    (void)tip;
    cairo_t *cairo = cairo_of(canvas, color);
    cairo_rectangle(cairo, x, y, width, height);
    cairo_fill(cairo);
}

static void cairo_line(sl_canvas *canvas, double x1, double y1, double x2, double y2, double width, sl_rgb color)
{
    cairo_t *cairo = cairo_of(canvas, color);
    cairo_set_line_width(cairo, width);
    cairo_move_to(cairo, x1, y1);
    cairo_line_to(cairo, x2, y2);
    cairo_stroke(cairo);
}

static void cairo_put_text(sl_canvas *canvas, double x, double y, double size, sl_align align, sl_rgb color,
                           const char *text)
{
    cairo_t *cairo = cairo_of(canvas, color);
    cairo_set_font_size(cairo, size);
    cairo_text_extents_t extents;
    cairo_text_extents(cairo, text, &extents);
    double shift = align == SL_ALIGN_LEFT ? 0 : align == SL_ALIGN_CENTER ? extents.x_advance / 2 : extents.x_advance;
    cairo_move_to(cairo, x - shift, y);
    cairo_show_text(cairo, text);
}

static cairo_status_t write_bytes(void *file, const unsigned char *bytes, unsigned length)
{
    return fwrite(bytes, 1, length, file) == length ? CAIRO_STATUS_SUCCESS : CAIRO_STATUS_WRITE_ERROR;
}

static sl_status check(cairo_status_t outcome)
{
    if (outcome == CAIRO_STATUS_SUCCESS || outcome == CAIRO_STATUS_WRITE_ERROR) /* the stream knows about the latter */
        return SL_OK;
    sl_status status = outcome == CAIRO_STATUS_NO_MEMORY ? SL_ERR_MEMORY : SL_ERR_INTERNAL;
    return sl_fail(status, "draw the picture: %s", cairo_status_to_string(outcome));
}

/* Draws the picture zoomed onto the surface. */
static sl_status draw(const sl_picture *picture, cairo_surface_t *surface, double zoom)
{
    cairo_canvas canvas = { .canvas = { .box = cairo_box, .line = cairo_line, .text = cairo_put_text },
                            .cairo = cairo_create(surface) };
    cairo_scale(canvas.cairo, zoom, zoom);
    cairo_select_font_face(canvas.cairo, "sans-serif", CAIRO_FONT_SLANT_NORMAL, CAIRO_FONT_WEIGHT_NORMAL);
    cairo_set_source_rgb(canvas.cairo, 1, 1, 1);
    cairo_paint(canvas.cairo);
    sl_picture_draw(picture, &canvas.canvas);
    sl_status status = check(cairo_status(canvas.cairo));
    cairo_destroy(canvas.cairo);
    return status;
}

sl_status sl_drawing_write_png(const sl_drawing *drawing, const sl_view_options *options, FILE *file)
{
    (void)options;
    sl_picture picture;
    sl_picture_init(&picture, drawing);
    double zoom = fmin(PNG_ZOOM, sqrt(MOST_PIXELS / (picture.width * picture.height)));
    zoom = fmin(zoom, LONGEST_SIDE / fmax(picture.width, picture.height));
    cairo_surface_t *surface = cairo_image_surface_create(CAIRO_FORMAT_RGB24, (int)ceil(picture.width * zoom),
                                                          (int)ceil(picture.height * zoom));
    sl_status status = draw(&picture, surface, zoom);
    if (status == SL_OK)
        status = check(cairo_surface_write_to_png_stream(surface, write_bytes, file));
    cairo_surface_destroy(surface);
    return status;
}

sl_status sl_drawing_write_pdf(const sl_drawing *drawing, const sl_view_options *options, FILE *file)
{
    (void)options;
    sl_picture picture;
    sl_picture_init(&picture, drawing);
    double zoom = fmin(1, LONGEST_PAGE / fmax(picture.width, picture.height));
    cairo_surface_t *surface =
        cairo_pdf_surface_create_for_stream(write_bytes, file, picture.width * zoom, picture.height * zoom);
    cairo_pdf_surface_set_metadata(surface, CAIRO_PDF_METADATA_TITLE, drawing->title);
    sl_status status = draw(&picture, surface, zoom);
    cairo_surface_finish(surface);
    if (status == SL_OK)
        status = check(cairo_surface_status(surface));
    cairo_surface_destroy(surface);
    return status;
}
