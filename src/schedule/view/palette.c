/* Colors of the views and their legend. */
#include "schedule/view/view.h"

#include <math.h>

/* Okabe and Ito's palette; what belongs together (the I and W of a B) is near, what is compared (F and B) is far. */
static const struct {
    sl_kind kind;
    const char *legend;
    sl_rgb color;
} looks[] = {
    { SL_KIND_F, "F forward", { 0x00, 0x72, 0xb2 } },
    { SL_KIND_B, "B backward", { 0xd5, 0x5e, 0x00 } },
    { SL_KIND_I, "I input gradient", { 0xe6, 0x9f, 0x00 } },
    { SL_KIND_W, "W weight gradient", { 0x00, 0x8f, 0x68 } },
    { SL_KIND_SEND_F, "send/receive F", { 0x45, 0x68, 0x82 } },
    { SL_KIND_SEND_B, "send/receive B", { 0x9c, 0x5a, 0x3c } },
    { SL_KIND_UNSHARD, "unshard, reshard, reduce", { 0xa8, 0x66, 0x90 } },
};

static sl_kind look_of(sl_kind kind)
{
    switch (kind) {
    case SL_KIND_RECV_F:
    case SL_KIND_WAIT_SEND_F:
        return SL_KIND_SEND_F;
    case SL_KIND_RECV_B:
    case SL_KIND_WAIT_SEND_B:
        return SL_KIND_SEND_B;
    case SL_KIND_RESHARD:
    case SL_KIND_REDUCE_GRAD:
    case SL_KIND_WAIT_REDUCE_GRAD:
        return SL_KIND_UNSHARD;
    default:
        return kind;
    }
}

static sl_rgb lighten(sl_rgb color, double share)
{
    return (sl_rgb){
        (uint8_t)lround(color.red + (255 - color.red) * share),
        (uint8_t)lround(color.green + (255 - color.green) * share),
        (uint8_t)lround(color.blue + (255 - color.blue) * share),
    };
}

sl_rgb sl_drawing_chunk_color(const sl_drawing *drawing, sl_kind kind, int chunk)
{
    sl_rgb color = { 0x88, 0x88, 0x88 };
    for (size_t i = 0; i < sizeof looks / sizeof *looks; i++) {
        if (looks[i].kind == look_of(kind))
            color = looks[i].color;
    }
    int steps = drawing->most_chunks > 1 ? drawing->most_chunks - 1 : 1;
    return sl_kind_class_of(kind) == SL_CLASS_COMPUTE ? lighten(color, 0.6 * chunk / steps) : color;
}

sl_rgb sl_drawing_color(const sl_drawing *drawing, sl_kind kind, int stage)
{
    return sl_drawing_chunk_color(drawing, kind, stage >= 0 && stage < drawing->stages ? drawing->chunks[stage] : 0);
}

sl_rgb sl_drawing_text_color(sl_rgb background)
{
    double luminance = 0.299 * background.red + 0.587 * background.green + 0.114 * background.blue;
    return luminance > 140 ? (sl_rgb){ 0, 0, 0 } : (sl_rgb){ 255, 255, 255 };
}

static bool appears(const sl_drawing *drawing, sl_kind kind)
{
    if (sl_schedule_has_kind(drawing->schedule, kind))
        return true;
    switch (kind) {
    case SL_KIND_F:
    case SL_KIND_B:
        return sl_schedule_has_kind(drawing->schedule, SL_KIND_OVERLAP_F_B);
    case SL_KIND_SEND_F:
        return sl_schedule_has_kind(drawing->schedule, SL_KIND_RECV_F);
    case SL_KIND_SEND_B:
        return sl_schedule_has_kind(drawing->schedule, SL_KIND_RECV_B);
    case SL_KIND_UNSHARD:
        return sl_schedule_has_kind(drawing->schedule, SL_KIND_RESHARD) ||
               sl_schedule_has_kind(drawing->schedule, SL_KIND_REDUCE_GRAD);
    default:
        return false;
    }
}

const char *sl_drawing_legend(const sl_drawing *drawing, int index, sl_kind *kind)
{
    for (size_t i = 0; i < sizeof looks / sizeof *looks; i++) {
        if (appears(drawing, looks[i].kind) && index-- == 0) {
            *kind = looks[i].kind;
            return looks[i].legend;
        }
    }
    return NULL;
}
