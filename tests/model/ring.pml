/* The lane protocol of shared/ring_writer.cc and shared/ring_reader.cc at small bounds: two threads own one lane after each
 * other, push into a ring of two slots, drop, give the lane back, or die with their process at any step; a consumer
 * drains, checkpoints and releases, and is killed and started again between any two steps.
 *
 * Memory is weaker than on any machine the project runs on: a store waits in a buffer of its thread and reaches memory in
 * any order (to one place, in its own). A release store waits until the buffer is empty. Loads happen in order,
 * as those behind an acquire load do.
 *
 * Checked: what is delivered is whole, in order and delivered once; a slot is not overwritten before it was released; once the
 * owner is gone, started = delivered + dropped + (0 or 1).
 *
 * Each of these must make a check fail, or the check shows nothing (tests/model/ring_model_test.py runs them all):
 *   NO_RELEASE     tail is stored without release
 *   NO_HANDOVER    the lane is given back without release
 *   HEAD_FIRST     head is stored without release: the copy may come after it
 *   EARLY_RELEASE  head is stored before the checkpoint
 *   TAIL_FIRST     the consumer reads the tail before it asks whether the owner is gone
 *   REACHED        an assertion that fails where the model ends
 */
#define CAPACITY 2
#define PUSHES 3
#define RECORDS 7 /* two threads times PUSHES, and one */
#define NONE 255

/* What memory holds. A slot holds the attempt number of its record, plus one. */
byte slot[CAPACITY];
byte tail, dropped, head;
byte lane_owner; /* 0: free, otherwise 1 + the thread */

/* What has been stored and not yet arrived, by thread and place. */
#define TAIL 2
#define DROPPED 3
#define OWNER 4
#define PLACES 5
byte buffered[10] = NONE;
#define AT(thread, place) buffered[(thread) * PLACES + (place)]
#define ARRIVED(thread) (AT(thread, 0) == NONE && AT(thread, 1) == NONE && AT(thread, TAIL) == NONE && \
                         AT(thread, DROPPED) == NONE && AT(thread, OWNER) == NONE)

/* The process is dead; its lock is free once its last store has arrived. */
bool dead;
byte running = 2;
#define OWNER_GONE ((dead || running == 0) && ARRIVED(0) && ARRIVED(1))

/* The store of the daemon: survives its kills. */
byte durable_head, durable_next;

/* What the checks know. */
byte started;
byte content[RECORDS]; /* of the n-th published record */

active proctype memory() {
  byte i;
end:
  do
    :: atomic { AT(0, 0) != NONE -> slot[0] = AT(0, 0); AT(0, 0) = NONE }
    :: atomic { AT(0, 1) != NONE -> slot[1] = AT(0, 1); AT(0, 1) = NONE }
    :: atomic { AT(0, TAIL) != NONE -> tail = AT(0, TAIL); AT(0, TAIL) = NONE }
    :: atomic { AT(0, DROPPED) != NONE -> dropped = AT(0, DROPPED); AT(0, DROPPED) = NONE }
    :: atomic { AT(0, OWNER) != NONE -> lane_owner = AT(0, OWNER); AT(0, OWNER) = NONE }
    :: atomic { AT(1, 0) != NONE -> slot[0] = AT(1, 0); AT(1, 0) = NONE }
    :: atomic { AT(1, 1) != NONE -> slot[1] = AT(1, 1); AT(1, 1) = NONE }
    :: atomic { AT(1, TAIL) != NONE -> tail = AT(1, TAIL); AT(1, TAIL) = NONE }
    :: atomic { AT(1, DROPPED) != NONE -> dropped = AT(1, DROPPED); AT(1, DROPPED) = NONE }
    :: atomic { AT(1, OWNER) != NONE -> lane_owner = AT(1, OWNER); AT(1, OWNER) = NONE }
  od
}

active proctype death() { dead = true }

active [2] proctype producer() provided (!dead) {
  byte me = _pid - 2; /* behind memory and death */
  byte own_tail, own_dropped, head_seen, pushes;

  atomic { lane_owner == 0 -> lane_owner = 1 + me } /* claim: an exchange that acquires */
  own_tail = tail;
  own_dropped = dropped;
  head_seen = head;
  do
    :: pushes < PUSHES ->
       atomic { pushes++; started++ }
       if
         :: own_tail - head_seen >= CAPACITY -> head_seen = head
         :: else
       fi
       if
         :: own_tail - head_seen >= CAPACITY ->
            own_dropped++;
            AT(me, DROPPED) = own_dropped
         :: else ->
            atomic {
              content[own_tail] = own_tail + own_dropped + 1;
              AT(me, own_tail % CAPACITY) = own_tail + own_dropped + 1;
              own_tail++
            }
#ifdef NO_RELEASE
            AT(me, TAIL) = own_tail
#else
            atomic { ARRIVED(me) -> tail = own_tail }
#endif
       fi
    :: pushes == PUSHES -> break
  od;
#ifdef NO_HANDOVER
  AT(me, OWNER) = 0;
#else
  atomic { ARRIVED(me) -> lane_owner = 0 }
#endif
  running--
}

#ifdef HEAD_FIRST
bool may_be_killed = false; /* it is the overwriting that must be found, not the checkpoint that comes too late */
#else
bool may_be_killed = true;
#endif
#define KILLED :: may_be_killed -> may_be_killed = false; goto attach

active proctype consumer() {
  byte own_head, own_next, from, seen_tail, copied;
  bool gone;

attach:
  if /* the greater of the durable and the shared head */
    :: durable_head >= head -> own_head = durable_head; own_next = durable_next
    :: else -> own_head = head; own_next = 0
  fi;
  from = own_head;
  do
    ::
#ifdef TAIL_FIRST
       seen_tail = tail;
       gone = OWNER_GONE;
#else
       gone = OWNER_GONE;
       seen_tail = tail;
#endif
       if
         :: seen_tail == own_head && gone -> break
         :: seen_tail == own_head && !gone -> (tail != own_head || OWNER_GONE)
         :: seen_tail != own_head ->
            from = own_head;
#ifdef HEAD_FIRST
            head = seen_tail;
#endif
            do
              :: own_head < seen_tail ->
                 copied = slot[own_head % CAPACITY];
                 atomic {
                   assert(copied == content[own_head]); /* whole, and not overwritten */
                   assert(copied - 1 >= own_next);
                   own_next = copied;
                   own_head++
                 }
              :: else -> break
            od;
#ifdef EARLY_RELEASE
            head = own_head;
#endif
            if KILLED :: true fi;
            atomic { /* one transaction */
              assert(from == durable_head); /* no gap, nothing twice */
              durable_head = own_head;
              durable_next = own_next
            }
            if KILLED :: true fi;
            head = own_head
       fi
    KILLED
  od;
  assert(started == durable_head + dropped || started == durable_head + dropped + 1);
#ifdef REACHED
  assert(false);
#endif
}
