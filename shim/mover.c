/* mover.c - hands pieces that leave the card to the node's mover, a process of the daemon's, and takes them back.
 *
 * The mover gets each piece as a file (exported by the driver), maps it on its side and copies it to memory of the host
 * that no tenant can map: a tenant could keep such a mapping for ever, and read what others leave there. No piece is
 * given up here before the mover has said that it is copied. A move may end half-way: then some pieces are away, and
 * those are what the next one brings back.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "movable.h"

#define AT_A_TIME ALQ_MOVER_PIECES
#define ANSWER_MS 60000     /* for one packet, behind the packets of others */
#define WINDOW    3         /* packets on their way: while one is copied, the mover maps the next */
#define PACKET_BYTES (1ull << 30)
#define PATIENCE_NS  10000000000ull     /* for room on the card or in the pool, which others are about to give */
#define PAUSE_MS     5

static struct alq_file sockets[ALQ_CARDS] = { [0 ... ALQ_CARDS - 1] = { .fd = -1 } };

static void hang_up(int card)
{
    if (alq_file_ours(&sockets[card]))
        alq_file_close(&sockets[card]);
    sockets[card].fd = -1;
}

/* The mover's answer: 0, or why not. */
static uint32_t hear(int card)
{
    struct alq_mover_answer answer;
    struct pollfd p = { .fd = sockets[card].fd, .events = POLLIN };
    ssize_t n = -1;
    if (alq_file_ours(&sockets[card]) && poll(&p, 1, ANSWER_MS) == 1)
        n = recv(sockets[card].fd, &answer, sizeof answer, MSG_DONTWAIT);
    if (n == sizeof answer && answer.head.magic == ALQ_MAGIC && answer.head.type == ALQ_MOVED)
        return answer.why;
    hang_up(card);
    return ALQ_WHY_MOVER;
}

static bool tell(int card, const void *message, size_t size, const int *files, size_t count)
{
    union { struct cmsghdr align; char bytes[CMSG_SPACE(sizeof(int) * AT_A_TIME)]; } control;
    struct iovec part = { .iov_base = (void *)(uintptr_t)message, .iov_len = size };
    struct msghdr m = { .msg_iov = &part, .msg_iovlen = 1 };
    if (count) {
        memset(&control, 0, sizeof control);
        m.msg_control = &control;
        m.msg_controllen = CMSG_SPACE(sizeof(int) * count);
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * count);
        memcpy(CMSG_DATA(c), files, sizeof(int) * count);
    }
    return alq_file_ours(&sockets[card]) && sendmsg(sockets[card].fd, &m, MSG_NOSIGNAL) == (ssize_t)size;
}

static uint32_t be_connected(int card)
{
    if (alq_file_ours(&sockets[card]))
        return ALQ_WHY_NOTHING;
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    if (snprintf(to.sun_path, sizeof to.sun_path, "%s/sock", alq_path()) >= (int)sizeof to.sun_path)
        return ALQ_WHY_MOVER;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return ALQ_WHY_MOVER;
    if (connect(fd, (struct sockaddr *)&to, sizeof to) == 0)
        sockets[card] = alq_file_high(fd);
    close(fd);
    struct alq_slot *own = __atomic_load_n(&alq_own, __ATOMIC_ACQUIRE);
    struct alq_mover_hello hello = {
        .head = { ALQ_MAGIC, ALQ_VERSION, ALQ_MOVER }, .pid = (uint32_t)getpid(), .slot = alq_slot_index(),
        .serial = own ? own->serial : 0, .card = (uint32_t)card };
    if (!tell(card, &hello, sizeof hello, NULL, 0)) {
        hang_up(card);
        return ALQ_WHY_MOVER;
    }
    return hear(card);
}

/* A file for the piece's memory; -1: the driver gives none. */
static int file_of(const struct alq_movable_piece *piece, CUdeviceptr at)
{
    int fd = -1;
    CUmemHandle handle = piece->handle;
    bool borrowed = !piece->at && !piece->handles;      /* the program has released its handle */
    if (borrowed && ALQ_REAL(cuMemRetainAllocationHandle)(&handle, (void *)(uintptr_t)at))
        return -1;
    if (ALQ_REAL(cuMemExportToShareableHandle)(&fd, handle, 1 /* a file */, 0))
        fd = -1;
    if (borrowed)
        ALQ_REAL(cuMemRelease)(handle);
    return fd;
}

/* ---- a move: packets of pieces, a few of them on their way at a time ---- */

struct packet {
    struct alq_mover_pieces pieces;
    int      files[AT_A_TIME];
    uint64_t bytes;
};

struct move {
    int           card;
    bool          out;
    uint32_t      why;
    unsigned      sent, heard;
    struct packet packet[WINDOW + 1];   /* the last is the one that is filled */
    alq_progress *progress;
};

static struct packet *packet_at(struct move *move, unsigned number) { return &move->packet[number % (WINDOW + 1)]; }

static void undo(struct move *move, const struct packet *packet)
{
    for (uint32_t i = 0; i < packet->pieces.count && !move->out; i++)     /* never half of it, and never zeros */
        alq_piece_unback(alq_piece(packet->pieces.piece[i].id));
}

/* The answer to the oldest packet. What has left gives up its memory; what could not be filled again does as well. */
static void settle(struct move *move)
{
    struct packet *packet = packet_at(move, move->heard++);
    uint32_t why = hear(move->card);
    if (why) {
        move->why = move->why ? move->why : why;
        undo(move, packet);
        return;
    }
    for (uint32_t i = 0; i < packet->pieces.count && move->out; i++)
        alq_piece_unback(alq_piece(packet->pieces.piece[i].id));
    move->progress(move->card, move->out ? (int64_t)packet->bytes : -(int64_t)packet->bytes);
}

static void settle_all(struct move *move)
{
    while (move->heard != move->sent)
        settle(move);
}

static void begin_packet(struct move *move)
{
    struct packet *packet = packet_at(move, move->sent);
    packet->pieces = (struct alq_mover_pieces){ .head = { ALQ_MAGIC, ALQ_VERSION, move->out ? ALQ_OUT : ALQ_IN } };
    packet->bytes = 0;
}

static void send_packet(struct move *move)
{
    struct packet *packet = packet_at(move, move->sent);
    struct alq_mover_pieces *pieces = &packet->pieces;
    if (!pieces->count)
        return;
    size_t size = offsetof(struct alq_mover_pieces, piece) + pieces->count * sizeof pieces->piece[0];
    bool told = !move->why && tell(move->card, pieces, size, packet->files, pieces->count);
    for (uint32_t i = 0; i < pieces->count; i++)
        close(packet->files[i]);
    if (told) {
        move->sent++;
        if (move->sent - move->heard == WINDOW)
            settle(move);
    } else {
        undo(move, packet);
        if (!move->why) {
            move->why = ALQ_WHY_MOVER;
            hang_up(move->card);    /* it died: the next one is found by a new connection */
        }
    }
    begin_packet(move);
}

/* Memory for a piece that returns. Others may be leaving right now: what is on its way is finished first, which makes room
 * in the pool for them, and then we wait for them. */
static uint32_t back(struct move *move, struct alq_movable_piece *piece)
{
    uint64_t began = alq_now();
    while (alq_piece_back(piece)) {
        send_packet(move);
        settle_all(move);
        if (move->why)
            return move->why;
        if (alq_now() - began > PATIENCE_NS || !alq_still_wanted(move->card, ALQ_RETURN))
            return ALQ_WHY_ROOM;
        alq_sleep_ms(PAUSE_MS);
    }
    return ALQ_WHY_NOTHING;
}

static void add(struct move *move, uint32_t i, struct alq_movable_piece *piece, CUdeviceptr at)
{
    struct packet *packet = packet_at(move, move->sent);
    if (!move->out && (move->why = back(move, piece)))
        return;
    packet = packet_at(move, move->sent);       /* back() may have sent the one before */
    int file = file_of(piece, at);
    if (file < 0) {
        move->why = ALQ_WHY_ERROR;
        if (!move->out)
            alq_piece_unback(piece);
        return;
    }
    packet->files[packet->pieces.count] = file;
    packet->pieces.piece[packet->pieces.count++] = (struct alq_mover_piece){ .id = i, .size = piece->size };
    packet->bytes += piece->size;
    if (packet->pieces.count == AT_A_TIME || packet->bytes >= PACKET_BYTES)
        send_packet(move);
}

static uint32_t move_once(int card, bool out, alq_progress *progress)
{
    struct move move = { .card = card, .out = out, .progress = progress, .why = be_connected(card) };
    begin_packet(&move);
    for (uint32_t i = 0; i < alq_pieces() && !move.why; i++) {
        struct alq_movable_piece *piece = alq_piece(i);
        CUdeviceptr at = alq_piece_address(piece, card);
        if (at && piece->resident == out)
            add(&move, i, piece, at);
    }
    send_packet(&move);
    settle_all(&move);
    return move.why;
}

/* A full pool may only be full until another tenant has returned. */
uint32_t alq_mover_move(int card, uint32_t order, alq_progress *progress)
{
    bool out = order != ALQ_RETURN;
    uint64_t began = alq_now();
    uint32_t why;
    while ((why = move_once(card, out, progress)) == ALQ_WHY_POOL && alq_now() - began < PATIENCE_NS &&
           out && alq_still_wanted(card, order))
        alq_sleep_ms(PAUSE_MS);
    return why;
}

void alq_mover_forget(void)
{
    for (int i = 0; i < ALQ_CARDS; i++)
        hang_up(i);
}
