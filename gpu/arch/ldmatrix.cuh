#pragma once
// Copies four 8x8 matrices of 16-bit elements between shared memory and the registers of a warp. Lanes 0-7
// pass the addresses of matrix 0's rows (16 bytes each, 16-byte aligned), lanes 8-15 those of matrix 1, and
// so on. Register i holds two elements of matrix i: (lane / 4, 2 (lane % 4)) and its right neighbour.

#include "gpu/arch/shared_pointer.cuh"

namespace splash::gpu::arch {

__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

// Transposed: register i holds element (2 (lane % 4), lane / 4) of matrix i and the one below it.
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

// sm_90.
__device__ __forceinline__ void stmatrix_x4(void* row, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

}  // namespace splash::gpu::arch
