/*
 * The CLI's side of the wire, as fast as a process can play it, so that what is measured is the reader.
 *
 * Knows three things: every control request is answered at once; every user message is followed by the lines of a
 * scenario; and a scenario may have questions, each of which is asked when one before it was answered. An answer
 * that is no success ends it. Ends when its input ends. Arguments are accepted and ignored, except that --version and
 * -v print a version.
 *
 * BENCH_SCENARIO  a directory with the files `hello` (said first), `frame` (repeated), `question` and `result` (said
 *                 last); each holds one line, or is empty, but `question` may have several: the last is asked again and
 *                 again, the others once before it
 * BENCH_COUNT     how often `frame` is said
 * BENCH_CALLS     how often the last question is asked; each time NUMBER in it becomes another number of that length
 * BENCH_AHEAD     how many questions wait for an answer at a time; 1 if it is not set
 * BENCH_SLOWLY    how often `frame` is said in the turn of a prompt that has the word "slowly". In such a turn STAMP
 *                 becomes the time at which the frame is written: microseconds of CLOCK_MONOTONIC
 * BENCH_PAUSE     microseconds that such a turn waits after each frame
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BATCH_BYTES (1 << 20) /* short frames are written in pieces of about this size */
#define ID_BYTES 256
#define NUMBER "10000000"
#define STAMP "0000000000000000"
#define MAX_QUESTIONS 16
#define MAX_NUMBERS 8 /* in one question */

struct text {
    const char *data;
    size_t size;
};

static void say(const char *data, size_t size) {
    while (size > 0) {
        ssize_t sent = write(STDOUT_FILENO, data, size);
        if (sent <= 0) exit(1); /* the reader has gone */
        data += sent;
        size -= (size_t)sent;
    }
}

static struct text load(const char *directory, const char *name) {
    char path[4096];
    struct stat status;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &status) < 0) {
        fprintf(stderr, "fake_cli: cannot read %s\n", path);
        exit(2);
    }
    struct text text = {"", (size_t)status.st_size};
    if (text.size > 0) {
        /* Mapped, not read: a line of 64 MB must not cost a copy before the clock starts. */
        text.data = mmap(NULL, text.size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (text.data == MAP_FAILED) exit(2);
    }
    close(fd);
    return text;
}

static struct text repeated(struct text line, long count) {
    long fits = line.size ? BATCH_BYTES / (long)line.size : 0;
    if (fits > count) fits = count;
    if (fits < 2) return line;
    char *batch = malloc(line.size * (size_t)fits);
    if (batch == NULL) exit(2);
    for (long i = 0; i < fits; i++) memcpy(batch + line.size * (size_t)i, line.data, line.size);
    return (struct text){batch, line.size * (size_t)fits};
}

static void play(struct text line, struct text batch, long count) {
    long in_batch = line.size ? (long)(batch.size / line.size) : 1;
    long left = line.size ? count : 0;
    for (; left >= in_batch; left -= in_batch) say(batch.data, batch.size);
    say(batch.data, line.size * (size_t)left);
}

static void play_slowly(struct text line, long count, long pause) {
    char *copy = malloc(line.size + 1), number[sizeof STAMP];
    if (copy == NULL) exit(2);
    memcpy(copy, line.data, line.size);
    copy[line.size] = '\0';
    char *stamp = strstr(copy, STAMP);
    for (long i = 0; i < count && line.size; i++) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        snprintf(number, sizeof number, "%016lld", (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000);
        if (stamp != NULL) memcpy(stamp, number, strlen(STAMP));
        say(copy, line.size);
        usleep((useconds_t)pause);
    }
    free(copy);
}

/* What is asked in one turn: each line once, the last of them `calls` times. */
struct questions {
    struct text line[MAX_QUESTIONS];
    long lines, calls, asked, answered;
    char *number[MAX_NUMBERS];
    int numbers;
};

static void prepare(struct questions *all, struct text file, long calls) {
    char *copy = malloc(file.size + 1), *last = copy;
    if (copy == NULL) exit(2);
    memcpy(copy, file.data, file.size);
    copy[file.size] = '\0';
    for (char *at = copy, *end; (end = strchr(at, '\n')) != NULL && all->lines < MAX_QUESTIONS; at = end + 1) {
        all->line[all->lines++] = (struct text){at, (size_t)(end + 1 - at)};
        last = at;
    }
    for (char *at = last; (at = strstr(at, NUMBER)) != NULL && all->numbers < MAX_NUMBERS; at++)
        all->number[all->numbers++] = at;
    all->calls = calls;
}

static long in_all(const struct questions *all) { return all->lines == 0 ? 0 : all->lines - 1 + all->calls; }

/* Says the next question, if there is one. */
static void ask(struct questions *all) {
    char number[sizeof NUMBER];
    if (all->asked == in_all(all)) return;
    long index = all->asked++ < all->lines ? all->asked - 1 : all->lines - 1;
    snprintf(number, sizeof number, "%ld", atol(NUMBER) + all->asked % atol(NUMBER));
    for (int i = 0; i < all->numbers; i++) memcpy(all->number[i], number, strlen(NUMBER));
    say(all->line[index].data, all->line[index].size);
}

/* The value of "request_id", whatever the blanks around the colon. */
static void answer(const char *line) {
    char out[ID_BYTES + 256];
    const char *at = strstr(line, "\"request_id\"");
    if (at == NULL) return;
    at += strlen("\"request_id\"");
    while (*at == ' ' || *at == ':') at++;
    if (*at++ != '"') return;
    int length = (int)strcspn(at, "\"");
    if (length >= ID_BYTES) return;
    int size = snprintf(out, sizeof out,
                        "{\"type\":\"control_response\",\"response\":{\"subtype\":\"success\",\"request_id\":\"%.*s\","
                        "\"response\":{\"mode\":\"default\"}}}\n",
                        length, at);
    say(out, (size_t)size);
}

int main(int argc, char **argv) {
    if (argc > 1 && (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-v") == 0)) {
        puts("2.1.330 (Claude Code)");
        return 0;
    }
    const char *directory = getenv("BENCH_SCENARIO");
    const char *number = getenv("BENCH_COUNT"), *calls = getenv("BENCH_CALLS");
    if (directory == NULL) {
        fputs("fake_cli: BENCH_SCENARIO is not set\n", stderr);
        return 2;
    }
    const char *window = getenv("BENCH_AHEAD"), *slowly = getenv("BENCH_SLOWLY");
    long count = number ? atol(number) : 1, ahead = window ? atol(window) : 1;
    const char *pause = getenv("BENCH_PAUSE");
    struct text hello = load(directory, "hello"), line = load(directory, "frame"), result = load(directory, "result");
    struct text batch = repeated(line, count);
    struct questions questions = {0};
    prepare(&questions, load(directory, "question"), calls ? atol(calls) : 1);
    char *request = NULL;
    size_t capacity = 0;
    while (getline(&request, &capacity, stdin) > 0) {
        if (strstr(request, "\"control_request\"")) {
            answer(request);
        } else if (strstr(request, "\"control_response\"")) {
            if (strstr(request, "\"success\"") == NULL) {
                fprintf(stderr, "fake_cli: was refused an answer: %.400s", request);
                return 3;
            }
            ask(&questions);
            if (++questions.answered == in_all(&questions)) say(result.data, result.size);
        } else if (strstr(request, "\"user\"")) {
            questions.asked = questions.answered = 0;
            say(hello.data, hello.size);
            if (strstr(request, "slowly") != NULL)
                play_slowly(line, slowly ? atol(slowly) : count, pause ? atol(pause) : 0);
            else
                play(line, batch, count);
            for (long i = 0; i < ahead; i++) ask(&questions);
            if (in_all(&questions) == 0) say(result.data, result.size);
        }
    }
    return 0;
}
