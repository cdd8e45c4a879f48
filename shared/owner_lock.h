// Liveness of a segment's owner: a POSIX record lock on byte 0. The kernel drops it at any death of the owner, however
// sudden, a forked child does not inherit it, and it reads right across PID namespaces, where kill(pid, 0) lies.
//
// The price: a process loses the lock when it closes *any* descriptor of the file. Therefore a process never opens a
// segment of its own again (writer_registry.h knows them).
#pragma once

namespace neuraldbg {

bool TakeOwnerLock(int fd) noexcept;

// Whether another process holds the lock. Says nothing about locks of the calling process.
bool OwnerLockHeld(int fd) noexcept;

}  // namespace neuraldbg
