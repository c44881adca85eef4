// The daemon's SEQPACKET socket: bound here, or passed by socket activation.
//
// PATH.lock, held with flock as long as the listener lives, makes sure that one daemon serves a
// path; the lock file stays. A socket left behind by a daemon that died is removed; anything else
// at that path (a symbolic link, a file) is refused. Mode 0660: the group decides who may connect.
#pragma once

#include "daemon/base/file.h"
#include "daemon/base/result.h"

namespace xp {

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
    // Ends listening, and removes the socket if it was bound here.
    void close();

private:
    Listener() = default;

    UniqueFd lock_;
    UniqueFd socket_;
    Path bound_path_;
};

}  // namespace xp
