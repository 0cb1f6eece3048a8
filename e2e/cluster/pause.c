/* pause: the first process of every pod. It holds the pod's namespaces, buries orphans, and ends when told to. */
#include <signal.h>
#include <stddef.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int number) {
    (void)number;
    _exit(0);
}

static void bury(int number) {
    (void)number;
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
}

int main(void) {
    struct sigaction on_end = {.sa_handler = end};
    struct sigaction on_child = {.sa_handler = bury, .sa_flags = SA_NOCLDSTOP | SA_RESTART};
    if (sigaction(SIGINT, &on_end, NULL) || sigaction(SIGTERM, &on_end, NULL) || sigaction(SIGCHLD, &on_child, NULL)) {
        return 1;
    }
    for (;;) {
        pause();
    }
}
