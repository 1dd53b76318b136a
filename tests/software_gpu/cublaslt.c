// A libcublasLt that multiplies nothing and has an exit handler, as NVIDIA's has: the process dies of SIGABRT where it is
// unloaded, or where exit handlers run while a handle is still live.
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static int live;
static int ended;

static void require(int good) {
    if (!good) abort();
}

__attribute__((destructor)) static void end(void) {
    ended = 1;
    require(syscall(SYS_gettid) == getpid());
    require(live == 0);
}

int cublasLtCreate(void **handle) {
    live += 1;
    *handle = &live;
    // As if Ctrl+C came while something takes long.
    if (getenv("CUBLASLT_HANGS")) {
        kill(getpid(), SIGINT);
        sleep(60);
    }
    return 0;
}

int cublasLtDestroy(void *handle) {
    (void)handle;
    require(!ended);
    live -= 1;
    return 0;
}

size_t cublasLtGetVersion(void) { return 130000; }

// Everything else fails, so that dmschat's own kernels multiply.
#define FAILS(name) \
    int name(void) { return 1; }
FAILS(cublasLtMatmulDescCreate)
FAILS(cublasLtMatmulDescSetAttribute)
FAILS(cublasLtMatmulDescDestroy)
FAILS(cublasLtMatrixLayoutCreate)
FAILS(cublasLtMatrixLayoutDestroy)
FAILS(cublasLtMatmulPreferenceCreate)
FAILS(cublasLtMatmulPreferenceSetAttribute)
FAILS(cublasLtMatmulPreferenceDestroy)
FAILS(cublasLtMatmulAlgoGetHeuristic)
FAILS(cublasLtMatmul)
