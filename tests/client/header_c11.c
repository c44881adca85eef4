/* Compiles with -std=c11 -Wpedantic -Werror and runs without a daemon. */
#include "expertpack.h"

#include <stdio.h>
#include <string.h>

#define CHECK(condition)                                                        \
    do {                                                                        \
        if (!(condition)) {                                                     \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);     \
            return 1;                                                           \
        }                                                                       \
    } while (0)

int main(void) {
    xp_client* client = xp_client_new("header_c11");
    xp_generate* request = xp_generate_new();
    const xp_event* event = NULL;
    const int32_t ids[] = {1, 2, 3};
    uint64_t id = 0;

    CHECK(client && request);
    CHECK(strlen(xp_version()) > 0);
    CHECK(strcmp(xp_status_name(XP_TOO_LARGE), "too_large") == 0);
    CHECK(strcmp(xp_status_name((xp_status)999), "unknown") == 0);
    CHECK(xp_connect(client, "/nonexistent/expertpackd.sock", 0) == XP_UNAVAILABLE);
    CHECK(strstr(xp_client_error(client), "/nonexistent/expertpackd.sock"));
    CHECK(xp_client_fd(client) == -1);
    CHECK(!xp_connection(client));
    CHECK(xp_generate_set_tokens(request, ids, 3) == XP_OK);
    CHECK(xp_submit(client, request, 0, &id) == XP_GONE);
    CHECK(xp_next_event(client, 0, &event) == XP_GONE);
    xp_generate_free(request);
    xp_client_free(client);
    return 0;
}
