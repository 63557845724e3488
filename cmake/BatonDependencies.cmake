# Everything Baton is built from. All of it comes from Debian 12 packages
# (tools/packages.txt); CUDA and NCCL are looked for and optional.
include_guard()

find_package(Threads REQUIRED)
find_package(Protobuf REQUIRED)
find_package(gRPC CONFIG REQUIRED)
find_package(absl CONFIG REQUIRED)
find_package(ucx CONFIG REQUIRED)
find_package(prometheus-cpp CONFIG REQUIRED)
find_package(civetweb CONFIG REQUIRED)
find_package(nlohmann_json CONFIG REQUIRED)
find_package(CLI11 CONFIG REQUIRED)
find_package(glog CONFIG REQUIRED)
find_package(Boost 1.81 CONFIG REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(CURL REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
if(BATON_BUILD_TESTS)
  find_package(GTest CONFIG REQUIRED)
  find_package(benchmark CONFIG REQUIRED)
endif()

# Optional: the CUDA Toolkit and NCCL, for the transport over NCCL. No engine
# computes on a GPU yet.
find_package(CUDAToolkit QUIET)
set(BATON_HAVE_CUDA ${CUDAToolkit_FOUND})
if(CUDAToolkit_FOUND)
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR}
                                       /usr/local/cuda/lib)
  message(STATUS "CUDA Toolkit ${CUDAToolkit_VERSION}: found")
else()
  message(STATUS "CUDA Toolkit: not found (optional)")
endif()
if(NCCL_INCLUDE_DIR AND NCCL_LIBRARY)
  message(STATUS "NCCL: ${NCCL_LIBRARY}")
  add_library(NCCL::nccl UNKNOWN IMPORTED)
  set_target_properties(
    NCCL::nccl PROPERTIES IMPORTED_LOCATION ${NCCL_LIBRARY}
                          INTERFACE_INCLUDE_DIRECTORIES ${NCCL_INCLUDE_DIR})
else()
  message(STATUS "NCCL: not found (optional)")
endif()
