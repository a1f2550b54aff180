/* A list of Nodes or Pods in Kubernetes' protobuf form -> the same list in its JSON form, with the fields that the
 * scheduler reads (src/aliquot/dialects/wire/objects.py) and no others. Everything else is skipped, unread.
 *
 * Field numbers and the form of each value are those of k8s.io/api/core/v1/generated.proto and of the JSON tags beside
 * it in types.go: a value that Go's omitempty leaves out of JSON is left out here. A pointer is written if it is there.
 *
 * Nothing is guessed: what is not well-formed ends with an error that names the message, the field and the byte.
 * Every length is checked against the end of the message around it before it is used (`take`).
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum kind {
    TEXT,          /* a string; left out if empty */
    TEXT_KEPT,     /* a string; written if it is there */
    FLAG,          /* a bool; left out if false */
    FLAG_KEPT,     /* a bool; written if it is there */
    NUMBER,        /* an int32 or int64; written if it is there */
    TIME,          /* a Time; left out if it is zero */
    MESSAGE,       /* written if it is there */
    MESSAGE_NEEDED, /* must be there */
    TEXTS,         /* map<string, string>; this and what follows may be there several times */
    AMOUNTS,       /* map<string, Quantity> */
    MESSAGES,      /* repeated */
    MESSAGES_KEPT, /* repeated; written also if there are none */
    MESSAGES_WITH_REASON, /* repeated; those without a `reason` are left out, and all where none has one */
    MESSAGES_IF_UNBOUND, /* repeated; left out of a PodSpec with a `nodeName` */
    MESSAGES_IF_RESIZED, /* repeated; left out unless a condition beside them says that a resize is pending */
};

struct message;

struct field {
    uint32_t number;
    enum kind kind;
    const char *name;
    const struct message *of;
    const char *written; /* the name as JSON has it before a value, after a comma */
    size_t size;
};

/* A field of a message: its number, its kind, its name in JSON; of a message, which one. */
#define FIELD_OF(number, kind, name, of) {number, kind, name, of, ",\"" name "\":", sizeof ",\"" name "\":" - 1}
#define FIELD(number, kind, name) FIELD_OF(number, kind, name, NULL)

struct message {
    const char *name;
    const struct field *fields;
    int count; /* at most 32: one bit each in `seen` */
};

#define MESSAGE_OF(variable, title, ...)                                                                              \
    static const struct field variable##_fields[] = {__VA_ARGS__};                                                    \
    static const struct message variable = {title, variable##_fields, sizeof variable##_fields / sizeof(struct field)}

MESSAGE_OF(owner, "OwnerReference", FIELD(1, TEXT_KEPT, "kind"), FIELD(3, TEXT_KEPT, "name"),
           FIELD(6, FLAG_KEPT, "controller"));
MESSAGE_OF(object_meta, "ObjectMeta", FIELD(1, TEXT, "name"), FIELD(2, TEXT, "generateName"), FIELD(3, TEXT, "namespace"),
           FIELD(5, TEXT, "uid"), FIELD(6, TEXT, "resourceVersion"), FIELD(8, TIME, "creationTimestamp"),
           FIELD(9, TIME, "deletionTimestamp"), FIELD(11, TEXTS, "labels"), FIELD(12, TEXTS, "annotations"),
           FIELD_OF(13, MESSAGES, "ownerReferences", &owner));
MESSAGE_OF(list_meta, "ListMeta", FIELD(2, TEXT, "resourceVersion"), FIELD(3, TEXT, "continue"));
enum { CONDITION_TYPE = 1, CONDITION_REASON = 5 };
MESSAGE_OF(condition, "PodCondition", FIELD(CONDITION_TYPE, TEXT_KEPT, "type"), FIELD(2, TEXT_KEPT, "status"), FIELD(CONDITION_REASON, TEXT, "reason"),
           FIELD(6, TEXT, "message"));

MESSAGE_OF(taint, "Taint", FIELD(1, TEXT_KEPT, "key"), FIELD(2, TEXT, "value"), FIELD(3, TEXT_KEPT, "effect"),
           FIELD(4, TIME, "timeAdded"));
MESSAGE_OF(node_spec, "NodeSpec", FIELD(4, FLAG, "unschedulable"), FIELD_OF(5, MESSAGES, "taints", &taint));
MESSAGE_OF(node_condition, "NodeCondition", FIELD(1, TEXT_KEPT, "type"), FIELD(2, TEXT_KEPT, "status"));
MESSAGE_OF(address, "NodeAddress", FIELD(1, TEXT_KEPT, "type"), FIELD(2, TEXT_KEPT, "address"));
MESSAGE_OF(node_status, "NodeStatus", FIELD(1, AMOUNTS, "capacity"), FIELD(2, AMOUNTS, "allocatable"),
           FIELD_OF(4, MESSAGES, "conditions", &node_condition), FIELD_OF(5, MESSAGES, "addresses", &address));
MESSAGE_OF(node, "Node", FIELD_OF(1, MESSAGE_NEEDED, "metadata", &object_meta), FIELD_OF(2, MESSAGE, "spec", &node_spec),
           FIELD_OF(3, MESSAGE, "status", &node_status));
MESSAGE_OF(node_list, "NodeList", FIELD_OF(1, MESSAGE_NEEDED, "metadata", &list_meta), FIELD_OF(2, MESSAGES_KEPT, "items", &node));

MESSAGE_OF(used_claim, "ResourceClaim", FIELD(1, TEXT_KEPT, "name"), FIELD(2, TEXT, "request"));
MESSAGE_OF(resources, "ResourceRequirements", FIELD(1, AMOUNTS, "limits"), FIELD(2, AMOUNTS, "requests"),
           FIELD_OF(3, MESSAGES, "claims", &used_claim));
MESSAGE_OF(field_ref, "ObjectFieldSelector", FIELD(2, TEXT_KEPT, "fieldPath"));
MESSAGE_OF(env_source, "EnvVarSource", FIELD_OF(1, MESSAGE, "fieldRef", &field_ref));
MESSAGE_OF(env, "EnvVar", FIELD(1, TEXT_KEPT, "name"), FIELD_OF(3, MESSAGE, "valueFrom", &env_source));
MESSAGE_OF(security, "SecurityContext", FIELD(4, NUMBER, "runAsUser"));
MESSAGE_OF(container, "Container", FIELD(1, TEXT_KEPT, "name"), FIELD_OF(7, MESSAGES, "env", &env),
           FIELD_OF(8, MESSAGE, "resources", &resources), FIELD_OF(15, MESSAGE, "securityContext", &security),
           FIELD(24, TEXT_KEPT, "restartPolicy"));
MESSAGE_OF(pod_security, "PodSecurityContext", FIELD(2, NUMBER, "runAsUser"));
MESSAGE_OF(toleration, "Toleration", FIELD(1, TEXT, "key"), FIELD(2, TEXT, "operator"), FIELD(3, TEXT, "value"),
           FIELD(4, TEXT, "effect"), FIELD(5, NUMBER, "tolerationSeconds"));
MESSAGE_OF(gate, "PodSchedulingGate", FIELD(1, TEXT_KEPT, "name"));
MESSAGE_OF(pod_claim, "PodResourceClaim", FIELD(1, TEXT_KEPT, "name"), FIELD(3, TEXT_KEPT, "resourceClaimName"));
MESSAGE_OF(group, "PodSchedulingGroup", FIELD(1, TEXT_KEPT, "podGroupName"));
enum { NODE_NAME = 10 };
MESSAGE_OF(pod_spec, "PodSpec", FIELD_OF(2, MESSAGES, "containers", &container), FIELD(8, TEXT, "serviceAccountName"),
           FIELD(NODE_NAME, TEXT, "nodeName"), FIELD_OF(14, MESSAGE, "securityContext", &pod_security), FIELD(19, TEXT, "schedulerName"),
           FIELD_OF(20, MESSAGES, "initContainers", &container), FIELD_OF(22, MESSAGES_IF_UNBOUND, "tolerations", &toleration),
           FIELD(25, NUMBER, "priority"), FIELD(31, TEXT_KEPT, "preemptionPolicy"), FIELD(32, AMOUNTS, "overhead"),
           FIELD(37, FLAG_KEPT, "hostUsers"), FIELD_OF(38, MESSAGES, "schedulingGates", &gate),
           FIELD_OF(39, MESSAGES, "resourceClaims", &pod_claim), FIELD_OF(40, MESSAGE, "resources", &resources),
           FIELD_OF(43, MESSAGE, "schedulingGroup", &group));
MESSAGE_OF(claim_status, "PodResourceClaimStatus", FIELD(1, TEXT_KEPT, "name"),
           FIELD(2, TEXT_KEPT, "resourceClaimName"));
MESSAGE_OF(extended_status, "PodExtendedResourceClaimStatus", FIELD(2, TEXT_KEPT, "resourceClaimName"));
MESSAGE_OF(container_status, "ContainerStatus", FIELD(1, TEXT_KEPT, "name"),
           FIELD_OF(11, MESSAGE, "resources", &resources));
enum { CONDITIONS = 2 };
MESSAGE_OF(pod_status, "PodStatus", FIELD(1, TEXT, "phase"), FIELD_OF(CONDITIONS, MESSAGES_WITH_REASON, "conditions", &condition),
           FIELD(7, TIME, "startTime"), FIELD_OF(8, MESSAGES_IF_RESIZED, "containerStatuses", &container_status),
           FIELD_OF(10, MESSAGES_IF_RESIZED, "initContainerStatuses", &container_status),
           FIELD(11, TEXT, "nominatedNodeName"),
           FIELD_OF(15, MESSAGES, "resourceClaimStatuses", &claim_status),
           FIELD_OF(18, MESSAGE, "extendedResourceClaimStatus", &extended_status));
MESSAGE_OF(pod, "Pod", FIELD_OF(1, MESSAGE_NEEDED, "metadata", &object_meta), FIELD_OF(2, MESSAGE, "spec", &pod_spec),
           FIELD_OF(3, MESSAGE, "status", &pod_status));
MESSAGE_OF(pod_list, "PodList", FIELD_OF(1, MESSAGE_NEEDED, "metadata", &list_meta), FIELD_OF(2, MESSAGES_KEPT, "items", &pod));

static const struct message *const LISTS[] = {&node_list, &pod_list};

/* One call. `at` of every function below is where it reads; nothing is read at or beyond its `end`. */
struct work {
    const uint8_t *begin;
    uint8_t *out, *limit; /* what is written; one that is full counts on (`missing`) */
    size_t missing;
    char *why;
    size_t why_size;
};

enum wire { VARINT = 0, EIGHT = 1, BYTES = 2, FOUR = 5 };

/* Always 0, so that callers can `return fail(...)`. The first failure is the one that is reported. */
static int fail(struct work *work, const uint8_t *at, const char *form, ...)
{
    if (work->why[0])
        return 0;
    int length = snprintf(work->why, work->why_size, "byte %td: ", at - work->begin);
    va_list rest;
    va_start(rest, form);
    if (length > 0 && (size_t)length < work->why_size)
        vsnprintf(work->why + length, work->why_size - (size_t)length, form, rest);
    va_end(rest);
    return 0;
}

/* Read */

static inline int varint(struct work *work, const uint8_t **at, const uint8_t *end, uint64_t *value)
{
    if (*at != end && **at < 128) { /* nearly all */
        *value = *(*at)++;
        return 1;
    }
    uint64_t found = 0;
    for (int shift = 0; shift < 70; shift += 7) {
        if (*at == end)
            return fail(work, *at, "a number is cut off");
        uint8_t byte = *(*at)++;
        if (shift == 63 && byte > 1)
            break;
        found |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) {
            *value = found;
            return 1;
        }
    }
    return fail(work, *at, "a number has more than 64 bits");
}

/* One field: its number, how it is written, and the bytes or the number that it has. */
struct token {
    uint32_t number;
    enum wire wire;
    uint64_t value;            /* VARINT */
    const uint8_t *start, *end; /* BYTES */
};

static inline int take(struct work *work, const uint8_t **at, const uint8_t *end, struct token *token)
{
    const uint8_t *here = *at;
    uint64_t tag = 0, length = 0;
    if (!varint(work, at, end, &tag))
        return 0;
    if (tag >> 3 == 0 || tag >> 3 > 0x1fffffff)
        return fail(work, here, "no field has the number %llu", (unsigned long long)(tag >> 3));
    token->number = (uint32_t)(tag >> 3);
    token->wire = (enum wire)(tag & 7);
    switch (token->wire) {
    case VARINT:
        return varint(work, at, end, &token->value);
    case BYTES:
        if (!varint(work, at, end, &length))
            return 0;
        break;
    case EIGHT:
        length = 8;
        break;
    case FOUR:
        length = 4;
        break;
    default:
        return fail(work, here, "no value is written in form %d", (int)(tag & 7));
    }
    if (length > (uint64_t)(end - *at))
        return fail(work, here, "field %u is longer than what is around it", token->number);
    token->start = *at;
    token->end = *at += length;
    return 1;
}

/* Write */

static inline void put(struct work *work, const void *from, size_t size)
{
    if (__builtin_expect((size_t)(work->limit - work->out) < size, 0)) {
        work->missing += size;
        work->limit = work->out; /* nothing more is written: what follows would not be in its place */
        return;
    }
    memcpy(work->out, from, size);
    work->out += size;
}

static inline void put_char(struct work *work, char one)
{
    if (__builtin_expect(work->limit == work->out, 0))
        work->missing++;
    else
        *work->out++ = (uint8_t)one;
}

#define EACH(byte) ((uint64_t)(byte) * 0x0101010101010101)

/* Whether one of eight bytes must be escaped: below 32, a quote, a backslash. May say so of others beside such a one. */
static inline int has_special(uint64_t eight)
{
    uint64_t quote = eight ^ EACH('"'), slash = eight ^ EACH('\\');
    return (((eight - EACH(32)) | (quote - EACH(1)) | (slash - EACH(1))) & ~eight & EACH(128)) != 0;
}

/* Annotations are mostly JSON themselves: six bytes for each of their quotes would make such a list three times as long. */
static void put_escaped(struct work *work, uint8_t byte)
{
    char code[] = "\\u00..";
    code[4] = "0123456789abcdef"[byte >> 4];
    code[5] = "0123456789abcdef"[byte & 15];
    switch (byte) {
    case '"': put(work, "\\\"", 2); break;
    case '\\': put(work, "\\\\", 2); break;
    case '\n': put(work, "\\n", 2); break;
    case '\r': put(work, "\\r", 2); break;
    case '\t': put(work, "\\t", 2); break;
    default: put(work, code, 6);
    }
}

static void put_text(struct work *work, const uint8_t *start, const uint8_t *end)
{
    put_char(work, '"');
    const uint8_t *plain = start, *at = start;
    while (at != end) {
        uint64_t eight;
        if (end - at >= 8 && (memcpy(&eight, at, 8), !has_special(eight))) {
            at += 8;
            continue;
        }
        if (*at < 32 || *at == '"' || *at == '\\') {
            put(work, plain, (size_t)(at - plain));
            put_escaped(work, *at);
            plain = at + 1;
        }
        at++;
    }
    put(work, plain, (size_t)(end - plain));
    put_char(work, '"');
}

static inline void put_name(struct work *work, int *first, const struct field *field)
{
    put(work, field->written + *first, field->size - (size_t)*first);
    *first = 0;
}

/* At least `width` digits. */
static void put_digits(struct work *work, uint64_t value, int width)
{
    char digits[20];
    int at = sizeof digits;
    do {
        digits[--at] = (char)('0' + value % 10);
        value /= 10;
    } while (value || (int)sizeof digits - at < width);
    put(work, digits + at, sizeof digits - (size_t)at);
}

static void put_number(struct work *work, int64_t value)
{
    if (value < 0)
        put_char(work, '-');
    put_digits(work, value < 0 ? -(uint64_t)value : (uint64_t)value, 1);
}

/* RFC 3339 in UTC, to the second, as Go writes a metav1.Time. */
static int put_time(struct work *work, const uint8_t *at, int64_t seconds)
{
    if (seconds < -62135596800 || seconds > 253402300799) /* the years 1 to 9999 */
        return fail(work, at, "no year has a second %lld", (long long)seconds);
    int64_t day = seconds / 86400, rest = seconds % 86400;
    if (rest < 0) {
        rest += 86400;
        day--;
    }
    /* Days since 1 March of the year 0, in eras of 400 years: a leap day is the last of its year. */
    int64_t since = day + 719468, era = since / 146097, in_era = since % 146097;
    int64_t year = (in_era - in_era / 1460 + in_era / 36524 - in_era / 146096) / 365;
    int64_t in_year = in_era - (365 * year + year / 4 - year / 100), month = (5 * in_year + 2) / 153;
    const struct { int64_t value; int width; char after; } parts[] = {
        {year + era * 400 + (month >= 10), 4, '-'}, {month < 10 ? month + 3 : month - 9, 2, '-'},
        {in_year - (153 * month + 2) / 5 + 1, 2, 'T'}, {rest / 3600, 2, ':'}, {rest / 60 % 60, 2, ':'},
        {rest % 60, 2, 'Z'},
    };
    put_char(work, '"');
    for (size_t part = 0; part < sizeof parts / sizeof *parts; part++) {
        put_digits(work, (uint64_t)parts[part].value, parts[part].width);
        put_char(work, parts[part].after);
    }
    put_char(work, '"');
    return 1;
}

/* Both */

static int is_written_so(struct work *work, const uint8_t *at, const struct token *token, enum wire wire,
                         const struct message *in, const char *name)
{
    return token->wire == wire || fail(work, at, "%s.%s is not written as its kind is", in->name, name);
}

/* The seconds of a Time; `*there` says whether it has any: one that is zero has not. */
static int read_time(struct work *work, const struct token *time, int64_t *seconds, int *there)
{
    struct token token;
    *there = 0;
    for (const uint8_t *at = time->start; at != time->end;) {
        const uint8_t *here = at;
        if (!take(work, &at, time->end, &token))
            return 0;
        if (token.number != 1)
            continue;
        if (token.wire != VARINT || *there)
            return fail(work, here, "a Time is not written as one");
        *seconds = (int64_t)token.value;
        *there = 1;
    }
    return 1;
}

/* What an entry of a map has as its key, 1, and its value, 2; what is not there is empty. */
static int read_entry(struct work *work, const struct token *entry, struct token *key, struct token *value)
{
    struct token token;
    key->start = key->end = value->start = value->end = entry->end;
    int seen = 0;
    for (const uint8_t *at = entry->start; at != entry->end;) {
        const uint8_t *here = at;
        if (!take(work, &at, entry->end, &token))
            return 0;
        if (token.number > 2)
            continue;
        if (token.wire != BYTES || seen & 1 << token.number)
            return fail(work, here, "an entry of a map is not written as one");
        seen |= 1 << token.number;
        *(token.number == 1 ? key : value) = token;
    }
    return 1;
}

static int put_entry(struct work *work, const struct token *entry, int amounts)
{
    struct token key, value, none;
    if (!read_entry(work, entry, &key, &value))
        return 0;
    if (amounts) { /* a Quantity has its string in the same place as an entry has its key */
        struct token quantity = value;
        if (!read_entry(work, &quantity, &value, &none))
            return 0;
    }
    put_text(work, key.start, key.end);
    put_char(work, ':');
    put_text(work, value.start, value.end);
    return 1;
}

static int is_text(const struct token *token, const char *text)
{
    size_t size = strlen(text);
    return (size_t)(token->end - token->start) == size && !memcmp(token->start, text, size);
}

/* Whether the message has a text of that number which is not empty. If it is not well-formed, that has failed. */
static int has_text(struct work *work, const struct token *message, uint32_t number)
{
    struct token token;
    int found = 0;
    for (const uint8_t *at = message->start; at != message->end;) {
        if (!take(work, &at, message->end, &token))
            return 0;
        found |= token.number == number && token.wire == BYTES && token.start != token.end;
    }
    return found;
}

/* Whether a condition of a PodStatus says so: then its containers have other resources than their spec says. */
static int is_resized(struct work *work, const struct token *status)
{
    struct token condition, token;
    for (const uint8_t *at = status->start; at != status->end;) {
        if (!take(work, &at, status->end, &condition))
            return 0;
        if (condition.number != CONDITIONS || condition.wire != BYTES)
            continue;
        for (const uint8_t *in = condition.start; in != condition.end;) {
            if (!take(work, &in, condition.end, &token))
                return 0;
            if (token.number != CONDITION_TYPE || token.wire != BYTES)
                continue;
            if (is_text(&token, "PodResizePending"))
                return 1;
            break; /* the type comes first: the rest is not read twice */
        }
    }
    return 0;
}

static int put_message(struct work *work, const struct token *whole, const struct message *form);

/* All of one repeated field, or of a map: this one, and those that follow it up to `end`. */
static int put_all(struct work *work, struct token token, const uint8_t *at, const uint8_t *end,
                   const struct field *field, const struct message *in)
{
    uint32_t number = field->number;
    int list = field->kind >= MESSAGES, first = 1;
    put_char(work, list ? '[' : '{');
    for (;;) {
        if (token.number == number) {
            if (!is_written_so(work, at, &token, BYTES, in, field->name))
                return 0;
            if (field->kind != MESSAGES_WITH_REASON || has_text(work, &token, CONDITION_REASON)) {
                if (!first)
                    put_char(work, ',');
                first = 0;
                if (!(list ? put_message(work, &token, field->of) : put_entry(work, &token, field->kind == AMOUNTS)))
                    return 0;
            } else if (work->why[0]) {
                return 0;
            }
        }
        if (at == end)
            break;
        if (!take(work, &at, end, &token))
            return 0;
    }
    put_char(work, list ? ']' : '}');
    return 1;
}

static int put_message(struct work *work, const struct token *whole, const struct message *form)
{
    struct token token;
    uint32_t seen = 0;
    int first = 1;
    put_char(work, '{');
    for (const uint8_t *at = whole->start; at != whole->end;) {
        const uint8_t *here = at;
        if (!take(work, &at, whole->end, &token))
            return 0;
        int which = 0;
        while (which < form->count && form->fields[which].number != token.number)
            which++;
        if (which == form->count)
            continue;
        const struct field *field = &form->fields[which];
        int repeated = field->kind >= TEXTS;
        if (seen & (uint32_t)1 << which) {
            if (repeated) /* written with the first of them */
                continue;
            return fail(work, here, "%s.%s is there twice", form->name, field->name);
        }
        seen |= (uint32_t)1 << which;
        enum wire wire = field->kind == FLAG || field->kind == FLAG_KEPT || field->kind == NUMBER ? VARINT : BYTES;
        if (!is_written_so(work, here, &token, wire, form, field->name))
            return 0;
        int64_t seconds;
        int there;
        switch (field->kind) {
        case TEXT:
            if (token.start == token.end)
                break;
            /* fall through */
        case TEXT_KEPT:
            put_name(work, &first, field);
            put_text(work, token.start, token.end);
            break;
        case FLAG:
            if (!token.value)
                break;
            /* fall through */
        case FLAG_KEPT:
            put_name(work, &first, field);
            token.value ? put(work, "true", 4) : put(work, "false", 5);
            break;
        case NUMBER:
            put_name(work, &first, field);
            put_number(work, (int64_t)token.value);
            break;
        case TIME:
            if (!read_time(work, &token, &seconds, &there))
                return 0;
            if (!there)
                break;
            put_name(work, &first, field);
            if (!put_time(work, here, seconds))
                return 0;
            break;
        case MESSAGE:
        case MESSAGE_NEEDED:
            put_name(work, &first, field);
            if (!put_message(work, &token, field->of))
                return 0;
            break;
        case MESSAGES_IF_RESIZED:
        case MESSAGES_IF_UNBOUND:
            if (field->kind == MESSAGES_IF_RESIZED ? !is_resized(work, whole) : has_text(work, whole, NODE_NAME))
                break;
            /* fall through */
        case TEXTS:
        case AMOUNTS:
        case MESSAGES:
        case MESSAGES_KEPT:
        case MESSAGES_WITH_REASON:
            put_name(work, &first, field);
            if (!put_all(work, token, at, whole->end, field, form))
                return 0;
            break;
        }
    }
    for (int which = 0; which < form->count; which++) {
        const struct field *field = &form->fields[which];
        if (seen & (uint32_t)1 << which)
            continue;
        if (field->kind == MESSAGE_NEEDED)
            return fail(work, whole->end, "%s.%s is missing", form->name, field->name);
        if (field->kind == MESSAGES_KEPT) {
            put_name(work, &first, field);
            put(work, "[]", 2);
        }
    }
    put_char(work, '}');
    return 1;
}

/* k8s\0, then runtime.Unknown: 1 typeMeta {1 apiVersion, 2 kind}, 2 the list, 3 an encoding of it (none is known). */
static int put_list(struct work *work, const uint8_t *start, const uint8_t *end)
{
    struct token token, type = {0}, list = {0}, version, kind;
    if (end - start < 4 || memcmp(start, "k8s", 4))
        return fail(work, start, "it does not begin as Kubernetes' protobuf does");
    for (const uint8_t *at = start + 4; at != end;) {
        const uint8_t *here = at;
        if (!take(work, &at, end, &token))
            return 0;
        if (token.number > 3)
            continue;
        struct token *which = token.number == 1 ? &type : token.number == 2 ? &list : NULL;
        if (token.wire != BYTES || (which ? which->start != NULL : token.start != token.end))
            return fail(work, here, "the envelope has an unknown form");
        if (which)
            *which = token;
    }
    if (!type.start || !list.start)
        return fail(work, end, "the envelope lacks its kind or its list");
    if (!read_entry(work, &type, &version, &kind))
        return 0;
    for (size_t which = 0; which < sizeof LISTS / sizeof *LISTS; which++)
        if (is_text(&version, "v1") && is_text(&kind, LISTS[which]->name))
            return put_message(work, &list, LISTS[which]);
    return fail(work, type.start, "it is no list of Nodes or Pods of v1");
}

/* The size of the JSON, which is in `out` if it is at most `room`; 0: not well-formed, `why` says what is wrong. */
EXPORT size_t aliquot_list_as_json(const uint8_t *raw, size_t size, uint8_t *out, size_t room, char *why,
                                   size_t why_size)
{
    struct work work = {.begin = raw, .out = out, .limit = out + room, .why = why, .why_size = why_size};
    why[0] = 0;
    if (!put_list(&work, raw, raw + size))
        return 0;
    return (size_t)(work.out - out) + work.missing;
}
