/* functions.c - addresses of all exported functions. Their prototypes are not needed for that, and not included: here
 * each is just a name. */
#include "functions.h"

#define PLAIN(name, since, symbol) extern void symbol(void);
#define TWINNED(name, since, symbol, suffix) extern void symbol(void), symbol##suffix(void);
#include "functions.def"
#undef PLAIN
#undef TWINNED

#define PLAIN(name, since, symbol) { #name, since, symbol, symbol },
#define TWINNED(name, since, symbol, suffix) { #name, since, symbol, symbol##suffix },
const struct function FUNCTIONS[] = {
#include "functions.def"
};
const size_t FUNCTION_COUNT = sizeof FUNCTIONS / sizeof *FUNCTIONS;
