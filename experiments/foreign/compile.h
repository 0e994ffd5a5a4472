#pragma once
// Makes the program of a file that declares a kernel (splash_bench.h).

#include <filesystem>
#include <string>
#include <vector>

namespace splash::experiments {

// The folder of splash_bench.h.
std::string bench_header_folder();

// Words that compile a .cu by nvcc ($CUDACXX, on the PATH, or in /usr/local/cuda) or a .cpp, .cc or .cxx by
// $CXX, else c++. `flags` come last. Throws InvalidArgument if the name ends otherwise, or if there is no
// nvcc.
std::vector<std::string> compile_words(const std::string& source, const std::string& program,
                                       const std::vector<std::string>& flags);

// Words that compile a .cu to PTX whose copy is to count (ptx_counting.h).
std::vector<std::string> counting_words(const std::string& source, const std::string& ptx,
                                        int compute_capability, const std::vector<std::string>& flags);

}  // namespace splash::experiments
