// Linked before the kernels: their shared memory begins here.
namespace gpu {
alignas(64) unsigned char shared_begin[64];
}
