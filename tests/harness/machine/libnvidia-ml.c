/* A stand-in for NVIDIA's library with two devices, of which the second lacks most functions' answers.
 * The environment chooses what goes wrong. Signatures are those of nvml.h, handles are an index plus one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *handle_t;
enum { SUCCESS = 0, NOT_SUPPORTED = 3 };
#define SECOND(device) ((long)(device) == 2)

static int wanted(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; return wanted("STUB_INIT", SUCCESS); }
int nvmlInit_v2(void) { return wanted("STUB_INIT", SUCCESS); }
int nvmlShutdown(void) { return wanted("STUB_CRASH", 0) ? (abort(), 1) : wanted("STUB_SHUTDOWN", SUCCESS); }
const char *nvmlErrorString(int code) { return code == 18 ? "Driver/library version mismatch" : code == 4 ? "Insufficient Permissions" : code == 15 ? "GPU is lost" : "An error"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "570.124.06"); return SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 12080; return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = wanted("STUB_DEVICES", 2); return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, handle_t *device) { *device = (handle_t)(long)(index + 1); return index == 1 ? wanted("STUB_SECOND", SUCCESS) : SUCCESS; }
int nvmlDeviceGetName(handle_t device, char *text, unsigned size) {
    snprintf(text, size, SECOND(device) ? "Old Card" : "NVIDIA H100 80GB HBM3");
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo(handle_t device, unsigned long long *total_free_used) {
    if (SECOND(device)) return wanted("STUB_SECOND_MEMORY", NOT_SUPPORTED);
    total_free_used[0] = 80ull << 30, total_free_used[1] = 79ull << 30, total_free_used[2] = 1ull << 30;
    return SUCCESS;
}
int nvmlGpmQueryDeviceSupport(handle_t device, unsigned *version_supported) {
    if (SECOND(device)) return NOT_SUPPORTED;
    version_supported[1] = 1;
    return SUCCESS;
}
int nvmlDeviceGetUtilizationRates(handle_t device, unsigned *gpu_memory) {
    if (SECOND(device)) return NOT_SUPPORTED;
    gpu_memory[0] = wanted("STUB_BUSY", 0), gpu_memory[1] = 0;
    return SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v3(handle_t device, unsigned *count, void *infos) {
    (void)infos;
    *count = 0;
    return SECOND(device) ? NOT_SUPPORTED : SUCCESS;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(handle_t device, unsigned long long *reasons) {
    *reasons = SECOND(device) ? 0 : wanted("STUB_REASONS", 1);
    return SUCCESS;
}
int nvmlDeviceGetPersistenceMode(handle_t device, unsigned *mode) { *mode = !SECOND(device); return SUCCESS; }
/* No nvmlDeviceGetMigMode: an older library lacks functions. */
