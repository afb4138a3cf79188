/* Logs the size of a store's write-ahead log at each fsync: what a loss of power would leave. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void note(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 4 || strncmp(path + length - 4, "-wal", 4)) return;
    struct stat file;
    FILE *log = fopen(getenv("SYNCED_SIZES"), "a");
    if (log == NULL || fstat(fd, &file)) abort();
    fprintf(log, "%lld\n", (long long)file.st_size);
    fclose(log);
}

int fsync(int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    int result = real(fd);
    note(fd);
    return result;
}

int fdatasync(int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    int result = real(fd);
    note(fd);
    return result;
}
