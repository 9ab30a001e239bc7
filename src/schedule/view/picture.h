/* Pictures: the layout is computed once and drawn through three thin calls, whatever the format. */
#ifndef SL_SCHEDULE_VIEW_PICTURE_H
#define SL_SCHEDULE_VIEW_PICTURE_H

#include "schedule/view/view.h"

typedef enum sl_align { SL_ALIGN_LEFT, SL_ALIGN_CENTER, SL_ALIGN_RIGHT } sl_align;

/* A surface to draw on; lengths in points, y goes down. Every entry is required. */
typedef struct sl_canvas sl_canvas;
struct SL_NAMED_FIELDS sl_canvas {
    /* tip describes the box if the format can show it on demand; may be NULL. */
    void (*box)(sl_canvas *canvas, double x, double y, double width, double height, sl_rgb color, const char *tip);
    void (*line)(sl_canvas *canvas, double x1, double y1, double x2, double y2, double width, sl_rgb color);
    /* y is the base line. */
    void (*text)(sl_canvas *canvas, double x, double y, double size, sl_align align, sl_rgb color, const char *text);
};

/* Where everything goes. */
typedef struct sl_picture {
    const sl_drawing *drawing;
    double width, height; /* of the whole */
    double left, top;     /* of the chart */
    double chart_width;
    double scale;                                         /* points a unit of time */
    double pitch;                                         /* from rank to rank */
    double compute_height, message_height, memory_height; /* of the lanes of a rank; 0: not drawn */
    double thinnest;                                      /* what is narrower and next to something drawn is left out */
    int label_every;                                      /* ranks are named at this distance */
} sl_picture;

void sl_picture_init(sl_picture *picture, const sl_drawing *drawing);
void sl_picture_draw(const sl_picture *picture, sl_canvas *canvas);

#endif
