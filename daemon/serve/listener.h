// The daemon's SEQPACKET socket: bound here, or passed by socket activation.
//
// PATH.lock, held with flock as long as the listener lives, makes sure that one daemon serves a
// path; the lock file stays. A socket left behind by a daemon that died is removed; anything else
// at that path (a symbolic link, a file) is refused. Mode 0660: the group decides who may connect.
//
// Who removes the socket's file while the daemon runs cuts clients off without a trace: reachable()
// tells. The name is never bound again behind an administrator's back.
#pragma once

#include <sys/types.h>

#include "daemon/base/file.h"
#include "daemon/base/result.h"

namespace xp {

// Whether a socket can be bound at `path`: its length, its directory, and what is there already.
// For the daemon to know before it loads models; bind() looks again.
Result<void> check_socket_path(const Path& path);

// Takes PATH.lock; kBusy when another process holds it.
Result<UniqueFd> lock_socket_path(const Path& path);

class Listener {
public:
    // `lock` is what lock_socket_path(path) gave.
    static Result<Listener> bind(const Path& path, UniqueFd lock);
    // A listening socket made by someone else, who also removes it. Checks that it is one.
    static Result<Listener> adopt(UniqueFd socket);

    Listener(Listener&& other) noexcept = default;
    Listener& operator=(Listener&& other) noexcept = delete;
    ~Listener() { close(); }

    int fd() const { return socket_.get(); }
    // Empty for a socket made by someone else.
    const Path& bound_path() const { return bound_path_; }
    // False when the file of a socket bound here is gone, or another one is in its place.
    bool reachable() const;
    // Ends listening, and removes the socket's file if it was bound here and is still the same.
    void close();

private:
    Listener() = default;

    UniqueFd lock_;
    UniqueFd socket_;
    Path bound_path_;
    dev_t device_ = 0;  // of the file at bound_path_
    ino_t inode_ = 0;
};

}  // namespace xp
