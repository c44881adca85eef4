#include "daemon/serve/accounts.h"

#include <algorithm>

#include "daemon/base/size.h"

namespace xp {

struct UserAccounts::Books {
    struct Account {
        uint64_t clients = 0;
        uint64_t requests = 0;
        uint64_t request_bytes = 0;
        int64_t units = 0;  // left until the next tick; below 0 when overdrawn
    };

    explicit Books(const UserLimits& user_limits) : limits(user_limits) {}

    Account& account(uid_t user) {
        return accounts.try_emplace(user, Account{.units = limits.units_per_tick}).first->second;
    }

    const UserLimits limits;
    std::mutex mutex;
    // Accounts without charges stay until their units are whole again, so that connecting anew buys
    // nothing.
    std::map<uid_t, Account> accounts;
};

UserAccounts::UserAccounts(const UserLimits& limits) : books_(std::make_shared<Books>(limits)) {}

const UserLimits& UserAccounts::limits() const { return books_->limits; }

Result<Charge> UserAccounts::charge_client(uid_t user) {
    const std::lock_guard lock(books_->mutex);
    Books::Account& account = books_->account(user);
    if (account.clients >= books_->limits.clients) {
        return make_error(ErrorCode::kBusy,
                          "{} clients of user {} are connected, which is the limit ([limits] "
                          "clients_per_user): try again when one has gone", account.clients, user);
    }
    ++account.clients;
    Charge charge;
    charge.books_ = books_;
    charge.user_ = user;
    charge.clients_ = 1;
    return charge;
}

Result<Charge> UserAccounts::charge_request(uid_t user, uint64_t bytes) {
    const UserLimits& limits = books_->limits;
    const std::lock_guard lock(books_->mutex);
    Books::Account& account = books_->account(user);
    if (account.requests >= limits.requests) {
        return make_error(ErrorCode::kBusy,
                          "{} requests of user {} wait or run, which is the limit ([limits] "
                          "requests_per_user): try again when one has ended", account.requests,
                          user);
    }
    if (bytes > limits.request_bytes - std::min(limits.request_bytes, account.request_bytes)) {
        return make_error(ErrorCode::kBusy,
                          "the requests of user {} that wait or run have {}, and with this one of "
                          "{} they would be above {}, the limit ([limits] request_bytes_per_user): "
                          "try again when one has ended", user,
                          format_size(account.request_bytes), format_size(bytes),
                          format_size(limits.request_bytes));
    }
    ++account.requests;
    account.request_bytes += bytes;
    Charge charge;
    charge.books_ = books_;
    charge.user_ = user;
    charge.requests_ = 1;
    charge.request_bytes_ = bytes;
    return charge;
}

bool UserAccounts::may_spend(uid_t user) const {
    const std::lock_guard lock(books_->mutex);
    const auto found = books_->accounts.find(user);
    return found == books_->accounts.end() || found->second.units > 0;
}

void UserAccounts::spend(uid_t user, uint64_t request_bytes) {
    const std::lock_guard lock(books_->mutex);
    books_->account(user).units -= 1 + static_cast<int64_t>(request_bytes / kBytesPerUnit);
}

void UserAccounts::tick() {
    const std::lock_guard lock(books_->mutex);
    const int64_t whole = books_->limits.units_per_tick;
    for (auto next = books_->accounts.begin(); next != books_->accounts.end();) {
        const auto entry = next++;
        Books::Account& account = entry->second;
        account.units = std::min(account.units + whole, whole);
        if (account.units == whole && account.clients == 0 && account.requests == 0) {
            books_->accounts.erase(entry);
        }
    }
}

AccountTotals UserAccounts::totals() const {
    const std::lock_guard lock(books_->mutex);
    AccountTotals totals;
    for (const auto& [user, account] : books_->accounts) {
        totals.users += account.clients > 0 || account.requests > 0;
        totals.requests += account.requests;
        totals.request_bytes += account.request_bytes;
    }
    return totals;
}

Charge& Charge::operator=(Charge&& other) noexcept {
    if (this != &other) {
        release();
        books_ = std::move(other.books_);
        user_ = other.user_;
        clients_ = other.clients_;
        requests_ = other.requests_;
        request_bytes_ = other.request_bytes_;
    }
    return *this;
}

void Charge::release() {
    // The account is there: one with charges is never erased.
    if (const auto books = std::move(books_)) {
        const std::lock_guard lock(books->mutex);
        UserAccounts::Books::Account& account = books->accounts.at(user_);
        account.clients -= clients_;
        account.requests -= requests_;
        account.request_bytes -= request_bytes_;
    }
}

bool may_manage(uid_t asking, uid_t other, uid_t daemon) {
    return asking == other || asking == 0 || asking == daemon;
}

}  // namespace xp
