// Linked after the kernels: their shared memory ends here.
namespace gpu {
alignas(64) unsigned char shared_end[64];
}
