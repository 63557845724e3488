# Whether the CUDA backend's kernels are built, and for which chips. Sets
# BATON_BUILD_CUDA.
include_guard()

set(BATON_CUDA AUTO CACHE STRING
    "Build the CUDA backend: ON, OFF, or AUTO (where the Toolkit is found)")
set_property(CACHE BATON_CUDA PROPERTY STRINGS AUTO ON OFF)
# One, so that a build stays short: 80 (A100), 89 (L40S), 90 (H100, H200), 100
# (B200). Code for a chip also runs on later ones of its kind; what is named
# without "-real" is compiled again by the driver for any later chip.
set(BATON_CUDA_ARCHITECTURES 90 CACHE STRING
    "Chips that the CUDA backend is compiled for, such as 80;89;90;100")

set(BATON_BUILD_CUDA OFF)
if(BATON_CUDA STREQUAL "OFF")
  message(STATUS "CUDA backend: off")
elseif(BATON_SANITIZE OR BATON_LIBFUZZER)
  # Its compiler knows no sanitizers; the emulated device runs the kernels.
  message(STATUS "CUDA backend: not with sanitizers")
else()
  find_program(
    BATON_NVCC nvcc
    HINTS ENV CUDACXX ENV CUDA_PATH
    PATHS /usr/local/cuda
    PATH_SUFFIXES bin)
  if(BATON_NVCC)
    if(NOT CMAKE_CUDA_COMPILER)
      set(CMAKE_CUDA_COMPILER ${BATON_NVCC})
    endif()
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES ${BATON_CUDA_ARCHITECTURES})
    endif()
    if(BATON_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
      set(CMAKE_CUDA_COMPILER_LAUNCHER ${BATON_CCACHE})
    endif()
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    set(BATON_BUILD_CUDA ON)
    message(STATUS "CUDA backend: for ${BATON_CUDA_ARCHITECTURES} "
                   "(${CMAKE_CUDA_COMPILER})")
  elseif(BATON_CUDA STREQUAL "ON")
    message(FATAL_ERROR "BATON_CUDA is ON and no nvcc was found; set CUDACXX")
  else()
    message(STATUS "CUDA backend: no nvcc found (optional)")
  endif()
endif()
