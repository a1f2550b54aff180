/* probe.h - what the files of the probe share. */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* Lines are JSON, one object each, with "event" first; a line is written whole. */
void line_begin(const char *event);
void line_text(const char *key, const char *value);     /* NULL is null */
void line_number(const char *key, double value);
void line_bool(const char *key, int value);
void line_open(const char *key, char bracket);          /* '{' or '['; key NULL within a list */
void line_close(char bracket);
void line_end(void);

double now(void);                                       /* seconds, CLOCK_MONOTONIC */

/* The card, through whatever libcuda.so.1 the loader finds. Each answers a CUresult, -1 where there is no library. */
void cuda_report(void);                                 /* writes "cuda": what is visible, and the memory it tells of */
int cuda_use(int card);                                 /* this card's context from now on */
const char *cuda_name(int result);
int cuda_alloc(uint64_t bytes);                         /* kept until the end */
int cuda_memory(uint64_t *free_bytes, uint64_t *total);
int cuda_launch(double ms);                             /* a kernel named burn that takes so long */
int cuda_mark(int slot);                                /* slot 0 or 1: an event behind what was launched */
int cuda_wait(int slot);

/* What can be got at: each writes a line with the kernel's error, null where there was none. */
void reach_write(const char *path);                     /* a byte into the file, which is made if it is not there */
void reach_look(const char *path);                      /* the names in the folder */
void reach_knock(const char *path);                     /* at a socket: whether one is let in, and stays in */
