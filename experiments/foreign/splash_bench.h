#pragma once
// Declares a kernel of yours for `splash bench my_kernel.cu` (or .cpp: a function on the CPU). C++17; this
// file and nvcc, or a C++ compiler, suffice to build it. The file defines one function:
//
//   void declare(splash_bench::Bench& bench) {
//     const int64_t n = bench.size("n", 1 << 24);               // splash bench --set n=1024 changes it
//     auto x = bench.input<float>("x", {n}), y = bench.input<float>("y", {n});
//     auto z = bench.output<float>("z", {n});
//     bench.flops(2.0 * n);
//     bench.run([=] { splash_bench::launch(saxpy, (n + 255) / 256, 256, 0, n, 2.f, x, y, z); });
//     bench.reference(z, [=](int64_t i) { return 2.0 * x[i] + y[i]; });
//   }
//
// `run` is called with pointers to device memory (of a .cpp: to host memory) that hold new inputs each time,
// and outputs full of poison. `reference` computes one element of an output, in double, in another process
// and after the calls that are judged by it; x[i] is then the input in host memory. An array that is read and
// written is an `update`: its reference reads what was there before. What a lambda needs it captures by
// value.
//
// The program that results obeys `splash bench` (file descriptors 3: words, 4: shared memory). It judges
// nothing: inputs, poison, checks and the clock that bears out its times are those of the other process.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fcntl.h>
#include <functional>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#ifdef __CUDACC__
#include <dlfcn.h>
#include <tuple>
#include <type_traits>

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace splash_bench {

template <class T>
struct TypeName;  // of the types that an array may have
template <>
struct TypeName<float> {
  static constexpr const char* text = "float32";
};
template <>
struct TypeName<double> {
  static constexpr const char* text = "float64";
};
template <>
struct TypeName<int32_t> {
  static constexpr const char* text = "int32";
};
template <>
struct TypeName<int64_t> {
  static constexpr const char* text = "int64";
};
template <>
struct TypeName<int8_t> {
  static constexpr const char* text = "int8";
};
template <>
struct TypeName<uint8_t> {
  static constexpr const char* text = "uint8";
};
#ifdef __CUDACC__
template <>
struct TypeName<__half> {
  static constexpr const char* text = "float16";
};
template <>
struct TypeName<__nv_bfloat16> {
  static constexpr const char* text = "bfloat16";
};
#endif

namespace detail {
inline std::vector<void*>& pointers() {  // of the arrays, for the call that comes next
  static std::vector<void*> current;
  return current;
}
}  // namespace detail

// Stands for the memory of an array: T* of the call that comes next.
template <class T>
class Array {
 public:
  explicit Array(std::size_t index) : index_(index) {}
  operator T*() const { return static_cast<T*>(detail::pointers()[index_]); }
  std::size_t index() const { return index_; }

 private:
  std::size_t index_;
};

class Bench {
 public:
  // A number that the command line may change; it is a part of the case's name.
  int64_t size(const std::string& name, int64_t usual) {
    const auto asked = asked_.find(name);
    sizes_[name] = asked == asked_.end() ? usual : asked->second;
    return sizes_[name];
  }
  // Values lie evenly between low and high; whole numbers include both.
  template <class T>
  Array<T> input(const std::string& name, const std::vector<int64_t>& shape, double low = -1,
                 double high = 1) {
    return add<T>(name, shape, "input", low, high);
  }
  template <class T>
  Array<T> output(const std::string& name, const std::vector<int64_t>& shape) {
    return add<T>(name, shape, "output", 0, 0);
  }
  template <class T>
  Array<T> update(const std::string& name, const std::vector<int64_t>& shape, double low = -1,
                  double high = 1) {
    return add<T>(name, shape, "update", low, high);
  }

  // What a call computes, and on which units: "float32" (FMA), or tensor cores in "tf32", "float16",
  // "bfloat16".
  void flops(double count, const std::string& unit = "float32") { flops_ = count, unit_ = unit; }
  // Bytes that a call must move. If it is not told: each array once, updates twice.
  void bytes(double count) { bytes_ = count; }
  // An output may differ from its reference by relative * |reference| + absolute. If it is not told,
  // `relative` follows from the outputs' types, and `absolute` is relative * root mean square of the
  // reference.
  void tolerance(double relative, double absolute) { relative_ = relative, absolute_ = absolute; }
  void run(std::function<void()> call) { run_ = std::move(call); }
  template <class T>
  void reference(const Array<T>& output, std::function<double(int64_t)> element) {
    references_[output.index()] = std::move(element);
  }

 private:
  friend class Worker;
  struct Info {
    std::string name, dtype, role;
    std::vector<int64_t> shape;
    double low, high;
    std::size_t bytes;
  };

  template <class T>
  Array<T> add(const std::string& name, const std::vector<int64_t>& shape, const char* role, double low,
               double high) {
    std::size_t count = 1;
    for (const int64_t extent : shape) count *= static_cast<std::size_t>(extent);
    arrays_.push_back({name, TypeName<T>::text, role, shape, low, high, count * sizeof(T)});
    return Array<T>(arrays_.size() - 1);
  }

  std::map<std::string, int64_t> asked_, sizes_;
  std::vector<Info> arrays_;
  std::map<std::size_t, std::function<double(int64_t)>> references_;
  std::function<void()> run_;
  double flops_ = 0, bytes_ = -1, relative_ = -1, absolute_ = -1;
  std::string unit_ = "float32";
};

// --- The device layer: one for CUDA, one for the host ---

struct Launched {  // a kernel that run() started by launch()
  std::string name;
  int64_t blocks, threads, registers, shared_bytes;
};

namespace detail {
inline std::vector<Launched>*& recorded() {  // where launch() notes what it starts; null: nowhere
  static std::vector<Launched>* list = nullptr;
  return list;
}
}  // namespace detail

#ifdef __CUDACC__

inline void check(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(status));
}

namespace detail {
template <class T>
__global__ void read_through(const T* data, std::size_t count, T* sink) {
  T sum = 0;
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x)
    sum += data[i];
  if (sum == T(0x5eed)) *sink = sum;
}
static __global__ void spin(long long cycles, long long* taken) {
  const long long start = clock64();
  while (clock64() - start < cycles) {
  }
  *taken = clock64() - start;
}
}  // namespace detail

#ifdef SPLASH_BENCH_COUNT
}  // namespace splash_bench

// What a copy of the kernel counts that `splash bench` put calls of these into
// (experiments/foreign/ptx_counting.h): passes through shared memory and those of them that bank conflicts
// cost; sectors and bytes of loads, and of stores; instructions of warps; of them those of the special
// function units.
extern "C" {
__device__ unsigned long long splash_bench_counts[8];

__device__ __noinline__ void splash_bench_shared(unsigned address, unsigned bytes) {
  const unsigned mask = __activemask(),
                 lane = (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) & 31;
  const unsigned width = bytes < 4 ? 4 : bytes, lanes = 128 / width;  // that one pass serves
  const unsigned group = lane / lanes, place = address / width;
  const bool first = __ffs(__match_any_sync(mask, (group << 24) | place)) - 1 == static_cast<int>(lane);
  const unsigned peers = __match_any_sync(mask, first ? (group << 8) | (place % lanes) : (1u << 16) | lane);
  const unsigned together = __match_any_sync(mask, group);
  const unsigned passes = __reduce_max_sync(together, first ? __popc(peers) : 1u);
  if (__ffs(together) - 1 != static_cast<int>(lane)) return;
  atomicAdd(&splash_bench_counts[0], static_cast<unsigned long long>(passes));
  atomicAdd(&splash_bench_counts[1], static_cast<unsigned long long>(passes - 1));
}

__device__ __noinline__ void splash_bench_global(unsigned long long address, unsigned bytes,
                                                 unsigned stores) {
  const unsigned mask = __activemask(),
                 lane = (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) & 31;
  const bool sector = __ffs(__match_any_sync(mask, address / 32)) - 1 == static_cast<int>(lane);
  const bool first = __ffs(__match_any_sync(mask, address)) - 1 == static_cast<int>(lane);
  const unsigned sectors = __popc(__ballot_sync(mask, sector)), firsts = __popc(__ballot_sync(mask, first));
  if (__ffs(mask) - 1 != static_cast<int>(lane)) return;
  atomicAdd(&splash_bench_counts[2 + 2 * stores], static_cast<unsigned long long>(sectors));
  atomicAdd(&splash_bench_counts[3 + 2 * stores], static_cast<unsigned long long>(firsts * bytes));
}

__device__ __noinline__ void splash_bench_block(unsigned instructions, unsigned special) {
  const unsigned mask = __activemask(),
                 lane = (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) & 31;
  if (__ffs(mask) - 1 != static_cast<int>(lane)) return;
  atomicAdd(&splash_bench_counts[6], static_cast<unsigned long long>(instructions));
  if (special > 0) atomicAdd(&splash_bench_counts[7], static_cast<unsigned long long>(special));
}

__global__ void splash_bench_keep(unsigned n) {  // without a caller they would not be in the PTX
  splash_bench_shared(n, n);
  splash_bench_global(n, n, n);
  splash_bench_block(n, n);
}
}

namespace splash_bench {
#endif

namespace detail {
// A copy of the file's kernels that counts, loaded by the driver: its library is opened here, so that none is
// linked.
class Counting {
 public:
  explicit Counting(const std::string& path) : driver_(dlopen("libcuda.so.1", RTLD_NOW)) {
    if (driver_ == nullptr) throw std::runtime_error("libcuda.so.1 cannot be opened");
    require(get<decltype(&cuModuleLoad)>("cuModuleLoad")(&module_, path.c_str()));
  }
  void launch(const char* name, dim3 grid, dim3 block, std::size_t shared_bytes, void** arguments) {
    CUfunction function = nullptr;
    require(get<decltype(&cuModuleGetFunction)>("cuModuleGetFunction")(&function, module_, name));
    if (shared_bytes > 0)
      require(get<decltype(&cuFuncSetAttribute)>("cuFuncSetAttribute")(
          function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, static_cast<int>(shared_bytes)));
    require(get<decltype(&cuLaunchKernel)>("cuLaunchKernel")(
        function, grid.x, grid.y, grid.z, block.x, block.y, block.z, static_cast<unsigned>(shared_bytes),
        nullptr, arguments, nullptr));
  }
  std::vector<unsigned long long> counts() {
    CUdeviceptr at = 0;
    std::size_t bytes = 0;
    require(get<CUresult (*)(CUdeviceptr*, std::size_t*, CUmodule, const char*)>("cuModuleGetGlobal_v2")(
        &at, &bytes, module_, "splash_bench_counts"));
    std::vector<unsigned long long> counts(bytes / sizeof(unsigned long long));
    check(cudaMemcpy(counts.data(), reinterpret_cast<const void*>(at), bytes, cudaMemcpyDeviceToHost));
    return counts;
  }

 private:
  template <class Function>
  Function get(const char* name) {
    void* const found = dlsym(driver_, name);
    if (found == nullptr) throw std::runtime_error(std::string("the driver has no ") + name);
    return reinterpret_cast<Function>(found);
  }
  static void require(CUresult result) {
    if (result != CUDA_SUCCESS)
      throw std::runtime_error("the driver ends with error " + std::to_string(result));
  }

  void* driver_;
  CUmodule module_ = nullptr;
};

inline Counting*& counting() {  // what launch() starts in place of the kernels themselves; null: them
  static Counting* copy = nullptr;
  return copy;
}
}  // namespace detail

// Starts kernel<<<grid, block, shared_bytes>>>(arguments...) and notes its launch for the report. A kernel
// started in another way is timed all the same; how it fills the GPU, and what it does there, is then not
// known.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes,
            Arguments&&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments),
                "a kernel needs an argument for each parameter");
  const void* const symbol = reinterpret_cast<const void*>(kernel);
  constexpr std::size_t kWithoutAsking = 48 << 10;
  if (shared_bytes > kWithoutAsking)
    check(cudaFuncSetAttribute(symbol, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared_bytes)));
  if (detail::recorded() != nullptr || detail::counting() != nullptr) {
    cudaFuncAttributes attributes{};
    check(cudaFuncGetAttributes(&attributes, symbol));
    const char* name = "";
    check(cudaFuncGetName(&name, symbol));
    if (detail::counting() != nullptr) {
      std::tuple<std::decay_t<Parameters>...> values(static_cast<Parameters>(arguments)...);
      std::apply(
          [&](auto&... value) {
            void* addresses[] = {static_cast<void*>(&value)..., nullptr};
            detail::counting()->launch(name, grid, block, shared_bytes, addresses);
          },
          values);
      return;
    }
    detail::recorded()->push_back({name, int64_t{grid.x} * grid.y * grid.z,
                                   int64_t{block.x} * block.y * block.z, attributes.numRegs,
                                   static_cast<int64_t>(attributes.sharedSizeBytes + shared_bytes)});
  }
  kernel<<<grid, block, shared_bytes>>>(static_cast<Parameters>(arguments)...);
  check(cudaGetLastError());
}

class Device {
 public:
  Device() {
    check(cudaGetDeviceProperties(&properties_, 0));
    flush_bytes_ = 2 * static_cast<std::size_t>(properties_.l2CacheSize);
    check(cudaMalloc(&flush_, flush_bytes_ + 256));
    check(cudaMemset(flush_, 0, flush_bytes_ + 256));
  }
  std::string describe() const {
    std::ostringstream text;
    text << R"("device":")" << properties_.name << R"(","compute_capability":)"
         << 10 * properties_.major + properties_.minor << R"(,"multiprocessors":)"
         << properties_.multiProcessorCount << R"(,"cache_bytes":)" << properties_.l2CacheSize;
    return text.str();
  }
  static void* allocate(std::size_t bytes) {
    void* memory = nullptr;
    check(cudaMalloc(&memory, bytes));
    return memory;
  }
  static void release(void* memory) { cudaFree(memory); }
  static void copy_in(void* to, const void* from, std::size_t bytes) {
    check(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
  }
  static void copy_out(void* to, const void* from, std::size_t bytes) {
    check(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
  }
  static void synchronize() { check(cudaDeviceSynchronize()); }
  // Read, so that nothing has to be written back during the call.
  void flush() { touch(flush_, flush_bytes_); }
  void touch(const void* memory, std::size_t bytes) {
    detail::read_through<<<4 * properties_.multiProcessorCount, 256>>>(
        static_cast<const unsigned*>(memory), bytes / sizeof(unsigned),
        reinterpret_cast<unsigned*>(static_cast<char*>(flush_) + flush_bytes_));
  }
  // The device still flushes, or waits, while the call is put into its queue, so that a launch's cost stays
  // outside.
  double time(const std::function<void()>& call) {
    if (start_ == nullptr) {
      check(cudaEventCreate(&start_));
      check(cudaEventCreate(&stop_));
    }
    detail::spin<<<1, 1>>>(40000, reinterpret_cast<long long*>(static_cast<char*>(flush_) + flush_bytes_));
    check(cudaEventRecord(start_));
    call();
    check(cudaEventRecord(stop_));
    synchronize();
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, start_, stop_));
    return 1e-3 * milliseconds;
  }
  double clock_hz() {
    auto* const taken = reinterpret_cast<long long*>(static_cast<char*>(flush_) + flush_bytes_);
    constexpr long long kCycles = 4000000;
    double seconds = 0;
    for (int i = 0; i < 2; ++i) seconds = time([&] { detail::spin<<<1, 1>>>(kCycles, taken); });
    long long cycles = 0;
    copy_out(&cycles, taken, sizeof cycles);
    return static_cast<double>(cycles) / seconds;
  }

 private:
  cudaDeviceProp properties_{};
  void* flush_ = nullptr;
  std::size_t flush_bytes_ = 0;
  cudaEvent_t start_ = nullptr, stop_ = nullptr;
};

#else

class Device {
 public:
  Device() {
    const auto cache = std::max({sysconf(_SC_LEVEL3_CACHE_SIZE), sysconf(_SC_LEVEL2_CACHE_SIZE), 1L << 20});
    cache_bytes_ = static_cast<std::size_t>(cache);
  }
  std::string describe() const {
    return R"("device":"cpu","compute_capability":0,"multiprocessors":0,"cache_bytes":)" +
           std::to_string(cache_bytes_);
  }
  static void* allocate(std::size_t bytes) {
    constexpr std::size_t kLine = 256;
    void* const memory = std::aligned_alloc(kLine, (bytes + kLine - 1) / kLine * kLine);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
  }
  static void release(void* memory) { std::free(memory); }
  static void copy_in(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
  static void copy_out(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
  static void synchronize() {}
  void flush() {
    flush_.resize(2 * cache_bytes_);
    touch(flush_.data(), flush_.size());
  }
  void touch(const void* memory, std::size_t bytes) {
    unsigned sum = 0;
    for (std::size_t i = 0; i < bytes; i += 64) sum += static_cast<const unsigned char*>(memory)[i];
    touched_ = sum;
  }
  static double time(const std::function<void()>& call) {
    const auto start = std::chrono::steady_clock::now();
    call();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  static double clock_hz() { return 0; }

 private:
  std::size_t cache_bytes_ = 0;
  std::vector<unsigned char> flush_;
  volatile unsigned touched_ = 0;
};

#endif

// Obeys the words that come in, one line each, and answers each with a line of JSON.
class Worker {
 public:
  explicit Worker(void (*declare)(Bench&)) : declare_(declare) {}

  void obey() {
    std::string line;
    while (next_line(line)) {
      std::istringstream words(line);
      std::string word;
      words >> word;
      try {
        answer("{" + act(word, words) + "}");
      } catch (const std::exception& error) {
        answer(R"({"error":)" + quoted(error.what()) + "}");
      }
    }
  }

 private:
  using Words = std::istringstream;

  std::string act(const std::string& word, Words& words) {
    if (word == "declare") return declared(words);
    if (word == "map") return map(words);
    if (word == "reference") return compare(words);
    if (word == "launches") return launches();
    if (word == "count") return count(words);
    std::string cache;
    std::size_t sets = 0;
    words >> cache >> sets;
    if (word == "prepare") return prepare(sets);
    if (word == "collect") return collect(sets);
    if (word == "time") return time(cache, sets);
    if (word == "calls" || word == "nothing") return calls(cache, sets, word == "calls");
    throw std::runtime_error("not a word of splash bench: " + word);
  }

  std::string declared(Words& words) {
    for (std::string name; words >> name;) words >> bench_.asked_[name];
    declare_(bench_);
    if (!bench_.run_) throw std::runtime_error("declare() names no bench.run(...)");
    for (const auto& asked : bench_.asked_) {
      if (bench_.sizes_.count(asked.first) == 0)
        throw std::runtime_error("there is no size '" + asked.first + "'");
    }
    std::ostringstream text;
    text.precision(17);
    text << R"("sizes":{)";
    const char* comma = "";
    for (const auto& size : bench_.sizes_) {
      text << comma << quoted(size.first) << ':' << size.second;
      comma = ",";
    }
    text << R"(},"arrays":[)";
    for (std::size_t i = 0; i < bench_.arrays_.size(); ++i) {
      const Bench::Info& array = bench_.arrays_[i];
      if (array.role != "input" && bench_.references_.count(i) == 0)
        throw std::runtime_error("the output '" + array.name + "' has no bench.reference(...)");
      text << (i == 0 ? "" : ",") << R"({"name":)" << quoted(array.name) << R"(,"dtype":)"
           << quoted(array.dtype) << R"(,"role":)" << quoted(array.role) << R"(,"low":)" << array.low
           << R"(,"high":)" << array.high << R"(,"shape":[)";
      for (std::size_t d = 0; d < array.shape.size(); ++d) text << (d == 0 ? "" : ",") << array.shape[d];
      text << "]}";
    }
    text << R"(],"flops":)" << bench_.flops_ << R"(,"bytes":)" << bench_.bytes_ << R"(,"unit":)"
         << quoted(bench_.unit_) << R"(,"relative":)" << bench_.relative_ << R"(,"absolute":)"
         << bench_.absolute_ << ',' << device().describe();
    return text.str();
  }

  std::string map(Words& words) {
    std::size_t bytes = 0;
    words >> bytes >> stride_;
    offsets_.assign(bench_.arrays_.size(), 0);
    for (std::size_t& offset : offsets_) words >> offset;
    constexpr int kSharedMemory = 4;
    void* const shared = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, kSharedMemory, 0);
    if (shared == MAP_FAILED) throw std::runtime_error("the shared memory cannot be mapped");
    shared_ = static_cast<char*>(shared);
    return "";
  }

  char* place(std::size_t set, std::size_t array) const { return shared_ + set * stride_ + offsets_[array]; }

  std::string prepare(std::size_t sets) {
    while (sets_.size() < sets) {
      sets_.emplace_back();
      for (const Bench::Info& array : bench_.arrays_) sets_.back().push_back(Device::allocate(array.bytes));
    }
    for (std::size_t set = 0; set < sets; ++set) {
      for (std::size_t i = 0; i < bench_.arrays_.size(); ++i)
        Device::copy_in(sets_[set][i], place(set, i), bench_.arrays_[i].bytes);
    }
    return "";
  }

  // The last call first: what still runs, though its call has returned, is then not ready.
  std::string collect(std::size_t sets) {
    while (sets-- > 0) {
      for (std::size_t i = 0; i < bench_.arrays_.size(); ++i) {
        if (bench_.arrays_[i].role != "input")
          Device::copy_out(place(sets, i), sets_[sets][i], bench_.arrays_[i].bytes);
      }
    }
    return "";
  }

  void ready(const std::string& cache, std::size_t set) {
    detail::pointers() = sets_[set];
    if (cache == "cold") device().flush();
    for (std::size_t i = 0; cache == "warm" && i < bench_.arrays_.size(); ++i)
      device().touch(sets_[set][i], bench_.arrays_[i].bytes);
  }

  std::string time(const std::string& cache, std::size_t sets) {
    std::ostringstream text;
    text.precision(17);
    text << R"("seconds":[)";
    for (std::size_t set = 0; set < sets; ++set) {
      ready(cache, set);
      text << (set == 0 ? "" : ",") << device().time(bench_.run_);
    }
    text << "]";
    return text.str();
  }

  // Calls, or all the same without the call, for the clock of the other process.
  std::string calls(const std::string& cache, std::size_t sets, bool call) {
    for (std::size_t set = 0; set < sets; ++set) {
      ready(cache, set);
      Device::synchronize();
      if (call) bench_.run_();
      Device::synchronize();
    }
    return "";
  }

  std::string launches() {
    std::vector<Launched> list;
    ready("", 0);
    detail::recorded() = &list;
    bench_.run_();
    Device::synchronize();
    detail::recorded() = nullptr;
    std::ostringstream text;
    text << R"("clock_hz":)" << device().clock_hz() << R"(,"launches":[)";
    for (std::size_t i = 0; i < list.size(); ++i) {
      text << (i == 0 ? "" : ",") << R"({"kernel":)" << quoted(list[i].name) << R"(,"blocks":)"
           << list[i].blocks << R"(,"threads":)" << list[i].threads << R"(,"registers":)" << list[i].registers
           << R"(,"shared_bytes":)" << list[i].shared_bytes << "}";
    }
    text << "]";
    return text.str();
  }

#ifdef __CUDACC__
  // One call by a copy of the kernels that counts, of the file that is named.
  std::string count(Words& words) {
    std::string path;
    words >> path;
    detail::Counting counting(path);
    ready("", 0);
    detail::counting() = &counting;
    bench_.run_();
    Device::synchronize();
    detail::counting() = nullptr;
    std::ostringstream text;
    text << R"("counts":[)";
    const char* comma = "";
    for (const unsigned long long number : counting.counts()) {
      text << comma << number;
      comma = ",";
    }
    text << "]";
    return text.str();
  }
#else
  static std::string count(Words&) {
    throw std::runtime_error("nothing is counted on the CPU");
  }
#endif

  // Element by element: indices stand in the shared memory, and their values take the place behind them.
  std::string compare(Words& words) {
    std::size_t set = 0, output = 0, count = 0, offset = 0;
    words >> set >> output >> count >> offset;
    detail::pointers().assign(bench_.arrays_.size(), nullptr);
    for (std::size_t i = 0; i < bench_.arrays_.size(); ++i) detail::pointers()[i] = place(set, i);
    const auto* const indices = reinterpret_cast<const int64_t*>(shared_ + offset);
    auto* const values = reinterpret_cast<double*>(shared_ + offset + count * sizeof(int64_t));
    const auto& element = bench_.references_.at(output);
    for (std::size_t i = 0; i < count; ++i) values[i] = element(indices[i]);
    return "";
  }

  static std::string quoted(const std::string& text) {
    std::string result = "\"";
    for (const char c : text) {
      if (c == '"' || c == '\\') result += '\\';
      result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
    return result + "\"";
  }

  Device& device() {
    static Device one;
    return one;
  }

  bool next_line(std::string& line) {
    line.clear();
    char letter = 0;
    while (read(kWords, &letter, 1) == 1) {
      if (letter == '\n') return true;
      line += letter;
    }
    return false;
  }
  void answer(const std::string& text) {
    const std::string line = text + "\n";
    for (std::size_t sent = 0; sent < line.size();) {
      const ssize_t n = write(kWords, line.data() + sent, line.size() - sent);
      if (n <= 0) std::exit(1);
      sent += static_cast<std::size_t>(n);
    }
  }

  static constexpr int kWords = 3;
  void (*declare_)(Bench&);
  Bench bench_;
  char* shared_ = nullptr;
  std::size_t stride_ = 0;
  std::vector<std::size_t> offsets_;
  std::vector<std::vector<void*>> sets_;  // [set][array]
};

}  // namespace splash_bench

void declare(splash_bench::Bench& bench);

int main() {
  if (fcntl(3, F_GETFD) < 0) {
    std::fputs("this is a kernel for `splash bench`, which starts it\n", stderr);
    return 2;
  }
  splash_bench::Worker(&declare).obey();
}
