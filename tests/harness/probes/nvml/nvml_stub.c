/* A stand-in for libnvidia-ml.so.1, for the tests of harness/probes/nvml.py: the functions that it calls, on two cards
 * and a MIG slice whose every answer is known. What goes wrong is chosen by words in the environment variable NVML_STUB:
 *   no_gpm, no_permission, lost (after the fourth call for energy), not_loaded, container (NVML's processes are the
 *   host's), old_metrics (GPM refuses a question with a metric that it does not know), hangs (never answers the third
 *   question for power), hangs_at_once (nor the first call), odd_name (no UTF-8), no_reasons (for throttling).
 * -DOLD_DRIVER leaves out what drivers before 535 do not have. Each call for energy adds a joule to the counter. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, TOO_SMALL = 7, NOT_LOADED = 9, LOST = 15 };

typedef struct { const char *name, *uuid; unsigned power_mw; unsigned long long energy_mj; unsigned index; } Card;
static Card cards[] = {
    {"Stub A", "GPU-aaaa0000-1111-2222-3333-444455556666", 300000, 5000000, 0},
    {"Stub B", "GPU-bbbb0000-1111-2222-3333-444455556666", 500000, 7000000, 1},
    {"Stub B MIG", "MIG-cccc0000-1111-2222-3333-444455556666", 0, 0, 7},
};
static int energy_calls;

static int is(const char *wanted) {
    const char *set = getenv("NVML_STUB");
    return set != NULL && strstr(set, wanted) != NULL;
}
static int state(void) { return is("lost") && energy_calls > 4 ? LOST : OK; }
static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int hang(void) { for (;;) pause(); }

int nvmlInitWithFlags(unsigned flags) { (void)flags; if (is("hangs_at_once")) return hang(); return is("not_loaded") ? NOT_LOADED : OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { (void)code; return "stub"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Card **card) {
    if (index > 1) return INVALID;
    *card = &cards[index];
    return OK;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, Card **card) {
    for (int i = 0; i < 3; i++)
        if (strcmp(uuid, cards[i].uuid) == 0) { *card = &cards[i]; return OK; }
    return NOT_FOUND;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Card *slice, Card **card) { (void)slice; *card = &cards[1]; return OK; }
int nvmlDeviceGetGpuInstanceId(Card *slice, unsigned *id) { *id = slice->index; return OK; }
int nvmlDeviceGetName(Card *card, char *name, unsigned length) { snprintf(name, length, "%s", is("odd_name") ? "\xff" : card->name); return OK; }
int nvmlDeviceGetUUID(Card *card, char *uuid, unsigned length) { snprintf(uuid, length, "%s", card->uuid); return OK; }

int nvmlDeviceGetTotalEnergyConsumption(Card *card, unsigned long long *mj) {
    energy_calls++;
    if (is("no_permission")) return NO_PERMISSION;
    *mj = card->energy_mj += 1000;
    return state();
}
static int power_calls;
int nvmlDeviceGetPowerUsage(Card *card, unsigned *mw) { if (is("hangs") && ++power_calls > 2) return hang(); *mw = card->power_mw; return state(); }
int nvmlDeviceGetUtilizationRates(Card *card, unsigned rates[2]) {
    if (card->index == 7) return NOT_SUPPORTED;
    rates[0] = 90;
    rates[1] = 60;
    return state();
}
int nvmlDeviceGetClockInfo(Card *card, unsigned kind, unsigned *mhz) {
    (void)card;
    *mhz = kind == 1 ? 1980 : 2619;
    return state();
}
int nvmlDeviceGetMemoryInfo(Card *card, unsigned long long memory[3]) {
    memory[0] = card->index == 7 ? 10000000000ull : 80000000000ull;
    memory[2] = 8000000000ull;
    memory[1] = memory[0] - memory[2];
    return state();
}
int nvmlDeviceGetPcieThroughput(Card *card, unsigned counter, unsigned *kb) {
    (void)card;
    *kb = counter == 0 ? 1000 : 2000;
    return state();
}

typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } Process;
static int processes(unsigned *count, Process *list) {
    const char *own = getenv("NVML_STUB_PID");
    unsigned there = is("container") ? 1 : 2;
    if (is("no_permission")) return NO_PERMISSION;
    if (*count < there) { *count = there; return TOO_SMALL; }
    memset(list, 0, there * sizeof *list);
    list[0] = (Process){is("container") ? 4194303u : 1u, 2000000000ull, 0, 0};
    if (there == 2) list[1] = (Process){own ? (unsigned)atoi(own) : 0, 6000000000ull, 0, 0};
    *count = there;
    return state();
}
int nvmlDeviceGetComputeRunningProcesses_v2(Card *card, unsigned *count, Process *list) { (void)card; return processes(count, list); }
int nvmlDeviceGetCurrentClocksThrottleReasons(Card *card, unsigned long long *bits) { (void)card; if (is("no_reasons")) return NOT_SUPPORTED; *bits = 0x4; return state(); }
int nvmlDeviceGetTemperature(Card *card, unsigned sensor, unsigned *c) { (void)card; (void)sensor; *c = 61; return state(); }

typedef struct { uint32_t id, scope; int64_t time, latency; unsigned type; int result; union { double d; unsigned long long u; } value; } Field;
int nvmlDeviceGetFieldValues(Card *card, int count, Field *fields) {
    unsigned long long kib = now_ns() / 1000 * 1048576 / 1000000; /* one GiB/s sent, two received, over all links */
    (void)card;
    for (int i = 0; i < count; i++) {
        fields[i].result = fields[i].scope == 0xFFFFFFFFu ? OK : INVALID;
        fields[i].value.u = (fields[i].id == 138 ? 1u : 2u) * kib;
    }
    return state();
}

#ifndef OLD_DRIVER
int nvmlDeviceGetComputeRunningProcesses_v3(Card *card, unsigned *count, Process *list) { (void)card; return processes(count, list); }
int nvmlDeviceGetCurrentClocksEventReasons(Card *card, unsigned long long *bits) { (void)card; if (is("no_reasons")) return NOT_SUPPORTED; *bits = 0x4; return state(); }
typedef struct { unsigned version, sensor; int celsius; } Temperature;
int nvmlDeviceGetTemperatureV(Card *card, Temperature *t) { (void)card; t->celsius = 62; return state(); }

typedef struct { unsigned version, supported; } Support;
typedef struct { uint64_t taken_ns; unsigned instance; } Snapshot;
typedef struct { unsigned id; int result; double value; const char *info[3]; } Metric;
typedef struct { unsigned version, count; Snapshot *first, *second; Metric metrics[]; } Query;
int nvmlGpmQueryDeviceSupport(Card *card, Support *support) {
    (void)card;
    if (is("no_permission")) return NO_PERMISSION;
    support->supported = !is("no_gpm");
    return OK;
}
int nvmlGpmSampleAlloc(Snapshot **snapshot) { *snapshot = calloc(1, sizeof **snapshot); return OK; }
int nvmlGpmSampleGet(Card *card, Snapshot *snapshot) { (void)card; snapshot->taken_ns = now_ns(); snapshot->instance = 0; return state(); }
int nvmlGpmMigSampleGet(Card *card, unsigned instance, Snapshot *snapshot) {
    (void)card;
    snapshot->taken_ns = now_ns();
    snapshot->instance = instance;
    return state();
}
int nvmlGpmMetricsGet(Query *query) {
    int refreshed = query->second->taken_ns - query->first->taken_ns > 100000000u;
    if (query->version != 1) return INVALID;
    for (unsigned i = 0; i < query->count; i++) {
        Metric *metric = &query->metrics[i];
        if (is("old_metrics") && metric->id >= 100 && query->count > 1) return INVALID;
        metric->result = metric->id >= 100 ? NOT_SUPPORTED : OK; /* no C2C on this card */
        metric->value = metric->id == 2 && query->second->instance == 7 ? 35 : metric->id == 2 ? 80 : metric->id;
        if (!refreshed) metric->value = NAN;
    }
    return state();
}
#endif
