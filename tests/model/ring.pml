/* One direction of a connection (shm/ring.cc), with its wake-ups, for an exhaustive search by Spin.
 *
 * A writer sends MESSAGES records through a ring of CELLS cells of 8 bytes to a reader. Each record
 * has a header of two cells and one or two more cells, as the search pleases; one that does not fit
 * before the end of the ring is preceded by a pad, of which the ring's last cell holds only the
 * first half of the header. Records are at most half the ring. Indices run freely.
 *
 * The machine is one of total store order: the stores of a side wait in its buffer and reach memory
 * in order at any later time; loads see memory, and neither side ever loads what it stores itself.
 * A full fence waits until the side's buffer is empty. Wait flags are plain stores here: their
 * atomic read-modify-write orders nothing that the protocol may rely on. Rings are immediate, may
 * overtake stores, and are dropped when one is pending. Nobody looks without being rung: there are
 * no timers, as the daemon's look once a second must never be needed.
 *
 * What must hold:
 *   - no state in which a side sleeps for ever: all records are delivered, no ring is lost (Spin's
 *     "invalid end state");
 *   - records arrive in order with the bytes that were written, and no honest side is ever taken
 *     for one that breaks the rules (the asserts on wrong_record and honest_peer_refused);
 *   - the reader reads no cell that was not written for it (reads_beyond_the_tail), the writer
 *     overwrites none that was not read (overwrites_unread).
 *
 * Each -D of a mutant below takes away what one of these depends on; tests/model/check runs them
 * all and knows how each must fail.
 */
#ifndef MESSAGES
#define MESSAGES 4
#endif
#ifndef CELLS
#define CELLS 8                     /* a power of two */
#endif
#define BUFFERED 8                  /* a whole record with pad and index */

#define WRITER 0
#define READER 1

/* Words in memory, then the cells. */
#define TAIL 0
#define HEAD 1
#define WAIT_DATA 2                 /* the reader's */
#define WAIT_SPACE 3                /* the writer's */
#define DATA 4

/* What a cell can hold: a record's number and one of its places, or a pad's length. */
#define LENGTH_CELL(n, length) ((n) * 8 + (length))    /* 3 or 4 */
#define ID_CELL(n) ((n) * 8 + 5)
#define BODY_CELL(n, i) ((n) * 8 + 6 + (i))            /* i is 0 or 1 */
#define PAD_CELL(length) (128 + (length))
#define PAD_ID_CELL 160

byte memory[DATA + CELLS];
bool unread[CELLS];                 /* what only the search knows: written and not read yet */
bool bell[2];
chan buffer[2] = [BUFFERED] of { byte, byte };

/* Faults, by name, so that the search can say which it found. */
bool overwrites_unread;
bool reads_beyond_the_tail;
bool wrong_record;
bool honest_peer_refused;

inline store(side, where, what) { buffer[side]!where, what }
inline fence(side) { empty(buffer[side]) }
inline ring(side) { bell[side] = true }

/* Brings one side's stores to memory. */
proctype Memory(byte side) {
    byte where, what;
end:
    do
    :: atomic {
        buffer[side]?where, what ->
        if
        :: where >= DATA ->
            overwrites_unread = unread[where - DATA];
            assert(!overwrites_unread);
            unread[where - DATA] = true
        :: else
        fi;
        memory[where] = what;
        where = 0;
        what = 0
    }
    od
}

proctype Writer() {
    byte n, length, needed, tail, peer_head, offset;
    bool pad;

next:
    if
    :: n == MESSAGES -> goto over
    :: else
    fi;
    if
    :: length = 3
    :: length = 4
    fi;

again:
    atomic {
        offset = tail % CELLS;
        pad = CELLS - offset < length;
#ifdef ROOM_WITHOUT_PAD
        needed = length
#else
        needed = (pad -> CELLS - offset + length : length)
#endif
    }
    if
    :: CELLS - (tail - peer_head) < needed ->
        atomic {
            peer_head = memory[HEAD];
            honest_peer_refused = peer_head > tail;
            assert(!honest_peer_refused)
        }
        if
        :: CELLS - (tail - peer_head) < needed -> goto no_room
        :: else
        fi
    :: else
    fi;

#ifdef TAIL_BEFORE_PAYLOAD
    store(WRITER, TAIL, tail + needed);
#endif
    if
    :: pad ->
        store(WRITER, DATA + offset, PAD_CELL(CELLS - offset));
        if
        :: CELLS - offset >= 2 -> store(WRITER, DATA + offset + 1, PAD_ID_CELL)
        :: else
        fi;
        /* The rest of a pad is not written, and not read: it counts as both. */
        offset = 0
    :: else
    fi;
    store(WRITER, DATA + offset, LENGTH_CELL(n, length));
    store(WRITER, DATA + offset + 1, ID_CELL(n));
    store(WRITER, DATA + offset + 2, BODY_CELL(n, 0));
    if
    :: length == 4 -> store(WRITER, DATA + offset + 3, BODY_CELL(n, 1))
    :: else
    fi;
    tail = tail + (pad -> CELLS - tail % CELLS + length : length);
#ifndef TAIL_BEFORE_PAYLOAD
    store(WRITER, TAIL, tail);
#endif

#ifndef NO_FENCE_AFTER_TAIL
    fence(WRITER);
#endif
    if
    :: memory[WAIT_DATA] -> ring(READER)
    :: else
    fi;
    n++;
    goto next;

no_room:
#ifndef SPACE_FLAG_AFTER_LOOK
    store(WRITER, WAIT_SPACE, 1);
#endif
#ifndef NO_FENCE_AFTER_WAIT_SPACE
    fence(WRITER);
#endif
    peer_head = memory[HEAD];
    if
    :: CELLS - (tail - peer_head) >= needed ->
        store(WRITER, WAIT_SPACE, 0);
        goto again
    :: else
    fi;
#ifdef SPACE_FLAG_AFTER_LOOK
    store(WRITER, WAIT_SPACE, 1);
    fence(WRITER);
#endif
    bell[WRITER];                   /* sleeps */
    store(WRITER, WAIT_SPACE, 0);
    bell[WRITER] = false;
    goto again;

over:
    skip
}

/* Takes one cell out of the ring. */
inline load(cell, to) {
    atomic {
        reads_beyond_the_tail = !unread[cell];
        assert(!reads_beyond_the_tail);
        to = memory[DATA + (cell)];
        unread[cell] = false
    }
}

inline expect(condition) {
    d_step {
        wrong_record = !(condition);
        assert(!wrong_record)
    }
}

proctype Reader() {
    byte n, head, peer_tail, offset, available, length, value;

next:
    if
    :: n == MESSAGES -> goto over
    :: else
    fi;

again:
    if
    :: head == peer_tail ->
        atomic {
            peer_tail = memory[TAIL];
            honest_peer_refused = peer_tail < head || peer_tail - head > CELLS;
            assert(!honest_peer_refused)
        }
        if
        :: head == peer_tail -> goto nothing
        :: else
        fi
    :: else
    fi;
    d_step {
        offset = head % CELLS;
        available = (peer_tail - head < CELLS - offset -> peer_tail - head : CELLS - offset)
    }
    load(offset, length);
    if
    :: length > 128 ->
        length = length - 128;
        if
        :: length >= 2 -> load(offset + 1, value); expect(value == PAD_ID_CELL)
        :: else
        fi;
        expect(offset != 0 && length == CELLS - offset && length <= available);
        head = head + length;
        store(READER, HEAD, head);
        goto again
    :: else
    fi;
    expect(length / 8 == n && (length % 8 == 3 || length % 8 == 4));
    length = length % 8;
    expect(length <= available);
#ifdef HEAD_BEFORE_COPY
    store(READER, HEAD, head + length);
#endif
    load(offset + 1, value);
    expect(value == ID_CELL(n));
    load(offset + 2, value);
    expect(value == BODY_CELL(n, 0));
    if
    :: length == 4 -> load(offset + 3, value); expect(value == BODY_CELL(n, 1))
    :: else
    fi;
    head = head + length;
#ifndef HEAD_BEFORE_COPY
    store(READER, HEAD, head);
#endif

#ifndef NO_FENCE_AFTER_HEAD
    fence(READER);
#endif
    if
    :: memory[WAIT_SPACE] -> ring(WRITER)
    :: else
    fi;
    n++;
    goto next;

nothing:
#ifndef DATA_FLAG_AFTER_LOOK
    store(READER, WAIT_DATA, 1);
#endif
#ifndef NO_FENCE_AFTER_WAIT_DATA
    fence(READER);
#endif
    peer_tail = memory[TAIL];
    if
    :: head != peer_tail ->
        store(READER, WAIT_DATA, 0);
        goto again
    :: else
    fi;
#ifdef DATA_FLAG_AFTER_LOOK
    store(READER, WAIT_DATA, 1);
    fence(READER);
#endif
#ifdef DRAIN_AFTER_LOOK
    bell[READER] = false;           /* with what was rung since the look */
#endif
    bell[READER];                   /* sleeps */
    store(READER, WAIT_DATA, 0);
#ifndef DRAIN_AFTER_LOOK
    bell[READER] = false;
#endif
    goto again;

over:
    skip
}

init {
    atomic {
        run Memory(WRITER);
        run Memory(READER);
        run Writer();
        run Reader()
    }
}
