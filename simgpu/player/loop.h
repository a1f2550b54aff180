/* loop.h - the player's one loop. */
#ifndef SIMGPU_LOOP_H
#define SIMGPU_LOOP_H

/* Serves until standard input ends, where that is asked for. Returns an exit code. */
int loop_run(int listener);
#endif
