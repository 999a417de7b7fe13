// CUDA graphs for a pretended GPU, in front of its libraries: a capture records nothing and a replay does nothing, but both are counted,
// and waiting for a stream that is being captured is the error that it is on a GPU. Declarations are CUDA 13's.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>

typedef int status;
enum { SUCCESS = 0, UNSUPPORTED = 900, INVALIDATED = 901 };

static void *capturing; // the stream; one at a time
static unsigned long long number;
static long captures, replays;
static int spoilt;

void pretend_graph_counts(long *found) { found[0] = captures, found[1] = replays; }

#define NEXT(name, types) ((status(*) types)dlsym(RTLD_NEXT, name))
static status refused(void) { return spoilt = 1, UNSUPPORTED; }
status cudaStreamSynchronize(void *s) { return capturing ? refused() : NEXT("cudaStreamSynchronize", (void *))(s); }
status cudaDeviceSynchronize(void) { return capturing ? refused() : NEXT("cudaDeviceSynchronize", (void))(); }

status cudaStreamBeginCapture(void *s, int mode) {
    capturing = s, spoilt = 0, number++;
    return SUCCESS;
}
status cudaStreamIsCapturing(void *s, int *is) {
    *is = capturing && s == capturing;
    return SUCCESS;
}
status cudaStreamGetCaptureInfo(void *s, int *is, unsigned long long *id, void **graph, void ***from, void **edges, size_t *n) {
    *is = capturing && s == capturing;
    if (id) *id = number;
    return SUCCESS;
}
status cudaStreamEndCapture(void *s, void **graph) {
    capturing = 0, *graph = malloc(1), captures += !spoilt;
    return spoilt ? INVALIDATED : SUCCESS;
}
status cudaGraphGetNodes(void *graph, void **found, size_t *n) {
    *n = 1; // not empty
    return SUCCESS;
}
status cudaGraphInstantiateWithFlags(void **made, void *graph, unsigned long long flags) {
    *made = malloc(1);
    return SUCCESS;
}
status cudaGraphLaunch(void *made, void *s) {
    replays++;
    return SUCCESS;
}
status cudaGraphDestroy(void *graph) {
    free(graph);
    return SUCCESS;
}
status cudaGraphExecDestroy(void *made) {
    free(made);
    return SUCCESS;
}
