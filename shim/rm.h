/* rm.h - the few ioctls of NVIDIA's resource manager (RM) that are watched and used, written out by hand.
 *
 * The layouts are those of the published open kernel modules (580 and 595 agree); the controls are flagged
 * NON_PRIVILEGED there: whoever holds the same open file of /dev/nvidiactl may issue them on its objects.
 * This is an undocumented ABI: the daemon probes before it relies on any of it. src/aliquot/adapters/gpu/rm.py spells the
 * controls a second time, tests/shim/test_abi.py compares.
 */
#ifndef ALIQUOT_RM_H
#define ALIQUOT_RM_H
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>

#define RM_MAGIC       'F'
#define RM_ESC_FREE    0x29
#define RM_ESC_CONTROL 0x2a
#define RM_ESC_ALLOC   0x2b
#define RM_ESC_XFER    211  /* a wrapper around any of the above, for structs that outgrow the ioctl's size field */

struct rm_alloc {           /* NVOS21_PARAMETERS */
    uint32_t root, parent, object, class_;
    uint64_t params;
    uint32_t params_size, status;
};
struct rm_alloc64 {         /* NVOS64_PARAMETERS: the same up to params */
    uint32_t root, parent, object, class_;
    uint64_t params, rights;
    uint32_t params_size, flags, status, pad;
};
struct rm_free {            /* NVOS00_PARAMETERS */
    uint32_t root, parent, object, status;
};
struct rm_control {         /* NVOS54_PARAMETERS */
    uint32_t client, object, command, flags;
    uint64_t params;
    uint32_t params_size, status;
};
struct rm_xfer {            /* nv_ioctl_xfer_t */
    uint32_t command, size;
    uint64_t pointer;
};
struct rm_group_params {    /* NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS */
    uint32_t error, ecc_error, address_space, engine;
    uint8_t  plugin, pad[3];
};
#define RM_IOC_CONTROL _IOWR(RM_MAGIC, RM_ESC_CONTROL, struct rm_control)
#define RM_IOC_ALLOC   _IOWR(RM_MAGIC, RM_ESC_ALLOC, struct rm_alloc)
#define RM_IOC_ALLOC64 _IOWR(RM_MAGIC, RM_ESC_ALLOC, struct rm_alloc64)
#define RM_IOC_FREE    _IOWR(RM_MAGIC, RM_ESC_FREE, struct rm_free)

#define RM_CLASS_ROOT      0x0041
#define RM_CLASS_DEVICE    0x0080
#define RM_CLASS_SUBDEVICE 0x2080
#define RM_CLASS_GROUP     0xa06c /* KEPLER_CHANNEL_GROUP_A, on every generation since */
static inline int rm_is_channel(uint32_t c) /* VOLTA to BLACKWELL_CHANNEL_GPFIFO */
{ return c == 0xc36f || c == 0xc46f || c == 0xc56f || c == 0xc86f || c == 0xc96f || c == 0xca6f; }
static inline int rm_is_compute(uint32_t c) /* VOLTA to BLACKWELL_COMPUTE */
{ return c == 0xc3c0 || c == 0xc5c0 || c == 0xc6c0 || c == 0xc7c0 || c == 0xc9c0 || c == 0xcbc0 || c == 0xcdc0 || c == 0xcec0; }
#define RM_CLASS_HOPPER_CHANNEL 0xc86f
#define RM_CLASS_HOPPER_COMPUTE 0xcbc0
#define RM_ENGINE_GR_FIRST 1u  /* NV2080_ENGINE_TYPE_GR0 .. GR7 */
#define RM_ENGINE_GR_LAST  8u

/* controls on a channel group */
#define RM_SET_TIMESLICE 0xa06c0103u /* uint64_t microseconds. libcuda itself sets it at the end of making a context: a shim
                                      * that sees this one registers again, so that the daemon's value comes last */
#define RM_GET_TIMESLICE 0xa06c0104u
#define RM_STOCK_TIMESLICE 2048u     /* microseconds: what a context has that nobody set anything of */
/* controls on a subdevice */
#define RM_DISABLE_CHANNELS 0x2080110bu
#define RM_GET_GID_INFO     0x2080014au /* the card's UUID */
#define RM_DISABLE_MAX 64
struct rm_disable {
    uint8_t  disable, pad0[3];
    uint32_t channels;
    uint8_t  only_scheduling, rewind, pad1[6];
    uint64_t preempt_event; /* must be 0 from user space */
    uint32_t client[RM_DISABLE_MAX];
    uint32_t channel[RM_DISABLE_MAX];
};
struct rm_gid {
    uint32_t index, flags;  /* 0, 0: as text, "GPU-..." */
    uint32_t length;
    uint8_t  data[256];
};

/* statuses */
#define RM_OK                  0x00
#define RM_INVALID_CLIENT      0x23
#define RM_INSUFFICIENT_PERMISSIONS 0x1b
#define RM_INVALID_OBJECT      0x33
#define RM_NOT_SUPPORTED       0x56

_Static_assert(sizeof(struct rm_alloc) == 32 && sizeof(struct rm_alloc64) == 48, "alloc");
_Static_assert(sizeof(struct rm_free) == 16 && sizeof(struct rm_control) == 32 && sizeof(struct rm_xfer) == 16, "free, control, xfer");
_Static_assert(sizeof(struct rm_group_params) == 20 && sizeof(struct rm_gid) == 268, "group, gid");
_Static_assert(sizeof(struct rm_disable) == 536 && offsetof(struct rm_disable, preempt_event) == 16, "disable");
_Static_assert(RM_IOC_CONTROL == 0xc020462aUL, "ioctl number");
#endif
