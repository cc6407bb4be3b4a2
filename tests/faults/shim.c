/* Stands between a process and the kernel for the files of the log: counts, fails, cuts or orders what is written.
 *
 * Preloaded, it passes everything on until one of the functions below is called, which the process finds through
 * dlsym (ctypes.CDLL(None) in Python). It sees only files whose names end in .db, .db-wal or .db-shm, or in .partial
 * for a copy that is not whole yet; and into the order it also puts renamed files and synced directories.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

enum kind { KIND_WRITE = 1, KIND_SYNC = 2, KIND_TRUNCATE = 4 };

/* Actions that are no errno. */
enum action { ACTION_NONE = 0, ACTION_KILL = -1, ACTION_TEAR_AND_KILL = -2, ACTION_SHORT = -3 };

/* The state: what was armed, how many calls of the armed kinds there were since, and where the order goes. */
static int armed_kinds;
static int armed_action;
static long armed_first;
static long armed_count;
static long calls;
static int trace_fd = -1;

/* From the `first` call (from 1) of these kinds on, `count` calls get the action: an errno, or one of the above. */
void shim_arm(int kinds, long first, long count, int action)
{
    armed_kinds = 0;
    __sync_synchronize();
    calls = 0;
    armed_first = first;
    armed_count = count;
    armed_action = action;
    __sync_synchronize();
    armed_kinds = kinds;
}

/* How many calls of the armed kinds there were since it was armed. */
long shim_calls(void)
{
    return calls;
}

/* Writes a line for every call into this descriptor from now on. */
void shim_trace(int fd)
{
    trace_fd = fd;
}

/* Puts a line of the caller's among those of the calls. */
void shim_mark(const char *words)
{
    char line[512];
    int length = snprintf(line, sizeof line, "mark %s\n", words);

    if (trace_fd >= 0)
        syscall(SYS_write, trace_fd, line, (size_t)length < sizeof line ? (size_t)length : sizeof line - 1);
}

/* Puts a call among those of the order. */
static void trace(const char *what, const char *of)
{
    char line[64];
    int length;

    if (trace_fd < 0)
        return;
    length = snprintf(line, sizeof line, "%s %s\n", what, of);
    syscall(SYS_write, trace_fd, line, (size_t)length);
}

static int ends_with(const char *name, const char *ending)
{
    size_t have = strlen(name), want = strlen(ending);

    return have >= want && strcmp(name + have - want, ending) == 0;
}

/* The ending of one of the log's files; a null pointer for all others. */
static const char *ending_of(const char *name)
{
    static const char *const endings[] = {".db", ".db-wal", ".db-shm", ".partial"};

    for (size_t index = 0; index < sizeof endings / sizeof *endings; index++)
        if (ends_with(name, endings[index]))
            return endings[index];
    return NULL;
}

/* The ending of the file that the descriptor is of. */
static const char *file_of(int fd)
{
    char link[64], name[4096];
    ssize_t length;

    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = readlink(link, name, sizeof name - 1);
    if (length <= 0)
        return NULL;
    name[length] = '\0';
    return ending_of(name);
}

static void end_here(void)
{
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;)
        pause();
}

/* What is to happen to this call. */
static int action_for(int fd, int kind, const char *what)
{
    const char *file;
    long number;

    if (trace_fd < 0 && !(armed_kinds & kind))
        return ACTION_NONE;
    file = file_of(fd);
    if (file == NULL)
        return ACTION_NONE;
    trace(what, file);
    if (!(armed_kinds & kind))
        return ACTION_NONE;
    number = __sync_add_and_fetch(&calls, 1);
    if (number < armed_first || number >= armed_first + armed_count)
        return ACTION_NONE;
    if (armed_action == ACTION_KILL)
        end_here();
    return armed_action;
}

static ssize_t failed(int action)
{
    errno = action;
    return -1;
}

ssize_t write(int fd, const void *data, size_t size)
{
    int action = action_for(fd, KIND_WRITE, "write");

    if (action > 0)
        return failed(action);
    if (action != ACTION_NONE && size > 1)
        size /= 2;
    ssize_t written = syscall(SYS_write, fd, data, size);
    if (action == ACTION_TEAR_AND_KILL)
        end_here();
    return written;
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset)
{
    int action = action_for(fd, KIND_WRITE, "write");

    if (action > 0)
        return failed(action);
    if (action != ACTION_NONE && size > 1)
        size /= 2;
    ssize_t written = syscall(SYS_pwrite64, fd, data, size, offset);
    if (action == ACTION_TEAR_AND_KILL)
        end_here();
    return written;
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)
{
    return pwrite64(fd, data, size, offset);
}

int fsync(int fd)
{
    int action = action_for(fd, KIND_SYNC, "sync");
    struct stat found;

    if (trace_fd >= 0 && fstat(fd, &found) == 0 && S_ISDIR(found.st_mode))
        trace("sync", "directory");

    return action > 0 ? (int)failed(action) : (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd)
{
    int action = action_for(fd, KIND_SYNC, "sync");

    return action > 0 ? (int)failed(action) : (int)syscall(SYS_fdatasync, fd);
}

int ftruncate64(int fd, off64_t length)
{
    int action = action_for(fd, KIND_TRUNCATE, "truncate");

    return action > 0 ? (int)failed(action) : (int)syscall(SYS_ftruncate, fd, length);
}

int ftruncate(int fd, off_t length)
{
    return ftruncate64(fd, length);
}

int rename(const char *from, const char *to)
{
    const char *file = ending_of(from);

    if (file != NULL)
        trace("rename", file);
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}
