/* cards.c - which of the tenant's cards is meant: the page names cards by UUID, the driver by ordinals and contexts. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include "shim.h"

#define ORDINALS 64
static int8_t known[ORDINALS];      /* card + 1; 0: not asked yet; ALQ_NOT_GRANTED as it is */

/* "GPU-..." and "MIG-...": the driver does not say which, so only what follows is compared. */
int alq_card_of_uuid(const char *uuid)
{
    struct alq_page *page = alq_page();
    if (!page || strlen(uuid) < 4)
        return ALQ_NOT_GRANTED;
    uint32_t cards = page->cards < ALQ_CARDS ? page->cards : ALQ_CARDS;
    for (uint32_t i = 0; i < cards; i++)
        if (!strncasecmp(page->card[i].uuid + 4, uuid + 4, sizeof page->card[i].uuid - 4))
            return (int)i;
    return ALQ_NOT_GRANTED;
}

int alq_card_of_device(CUdevice device)
{
    if (device < 0)
        return ALQ_NO_CONTEXT;
    int8_t cached = device < ORDINALS ? __atomic_load_n(&known[device], __ATOMIC_RELAXED) : 0;
    if (cached)
        return cached > 0 ? cached - 1 : cached;
    CUuuid id;
    const unsigned char *b = id.bytes;
    if (ALQ_REAL(cuDeviceGetUuid_v2)(&id, device) && ALQ_REAL(cuDeviceGetUuid)(&id, device))
        return ALQ_NO_CONTEXT;      /* no such device: the real call says it better */
    char text[48];
    snprintf(text, sizeof text, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1],
             b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
    int card = alq_card_of_uuid(text);
    if (card == ALQ_NOT_GRANTED && alq_page()) {
        static int said;
        if (!__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED))
            alq_say("card %s is not one of this tenant's: its memory is refused.", text);
    }
    if (device < ORDINALS && alq_page())
        __atomic_store_n(&known[device], (int8_t)(card >= 0 ? card + 1 : card), __ATOMIC_RELAXED);
    return card;
}

int alq_ordinal_of(const CUmemLocation *where)
{
    return where->type == LOCATION_DEVICE ? where->id : where->type == LOCATION_DEVICE_PART ? where->id & 0xff : -1;
}

/* Managed memory may prefer the host, or no place at all: the card is where it is used, so all of it counts there. */
int alq_card_of_location(int type, const CUmemLocation *where)
{
    int ordinal = alq_ordinal_of(where);
    if (ordinal < 0 && type != ALLOCATION_MANAGED)
        return ALQ_NO_CONTEXT;
    int card = ordinal < 0 ? alq_card_of_context(NULL) : alq_card_of_device(ordinal);
    return ordinal < 0 && card == ALQ_NO_CONTEXT ? alq_card_of_device(0) : card;
}

int alq_card_of_context(CUdevice *device)
{
    CUdevice d = -1;
    if (ALQ_REAL(cuCtxGetDevice)(&d))
        return ALQ_NO_CONTEXT;
    if (device)
        *device = d;
    return alq_card_of_device(d);
}

CUcontext alq_context(void)
{
    CUcontext context = NULL;
    return ALQ_REAL(cuCtxGetCurrent)(&context) ? NULL : context;
}

/* The common tenant has one card, and then there is nothing to ask. */
int alq_card_here(void)
{
    struct alq_page *page = alq_page();
    if (!page || page->cards <= 1)
        return 0;
    static __thread struct { CUcontext context; int card; } last;
    CUcontext context = alq_context();
    if (!context || context != last.context) {
        int card = alq_card_of_context(NULL);
        last.context = context;
        last.card = card < 0 ? 0 : card;
    }
    return last.card;
}
