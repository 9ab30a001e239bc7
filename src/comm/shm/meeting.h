/* Where the ranks of a run that others started meet: a Unix socket in a folder that only this user can write to. */
#ifndef SL_COMM_SHM_MEETING_H
#define SL_COMM_SHM_MEETING_H

#include <sluice/base.h>

#include <sys/un.h>

typedef struct sl_meeting {
    char folder[sizeof(((struct sockaddr_un *)NULL)->sun_path)];
    bool own;                   /* the folder is there for this alone */
    struct sockaddr_un address; /* in that folder, named for the key */
} sl_meeting;

/* Both wait until that moment of sl_now(). The same key leads to the same place: $XDG_RUNTIME_DIR, else a folder of the
 * user's own in $TMPDIR (/tmp), else in $HOME. The caller closes the descriptor; rank 0 ends the meeting. */
SL_MUST_CHECK sl_status sl_meeting_listen(const char *key, double until, sl_meeting *meeting, int *out);
/* Takes the name away, and the folder if no other run uses it. */
void sl_meeting_end(const sl_meeting *meeting);
SL_MUST_CHECK sl_status sl_meeting_connect(const char *key, double until, int *out);

#endif
