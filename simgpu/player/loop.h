/* loop.h - the player's one loop. */
#ifndef SIMGPU_LOOP_H
#define SIMGPU_LOOP_H
#include <signal.h>

/* Set by a signal handler: the loop ends. */
extern volatile sig_atomic_t loop_stop;

/* Serves until it is stopped. Returns an exit code. */
int loop_run(int listener);
#endif
