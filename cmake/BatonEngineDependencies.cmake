# What the engine, its tests and its benchmarks are built from, for
# BATON_ENGINE_ONLY: Abseil, glog, nlohmann-json, xxHash and GoogleTest. Either
# from the system, or from a folder that tools/gpu_bundle made on a machine that
# has them, for one that has nothing but a compiler, CMake and the CUDA Toolkit.
include_guard()

set(BATON_BUNDLE "" CACHE PATH
    "Folder that tools/gpu_bundle made; empty: the system's libraries")
find_package(Threads REQUIRED)

if(NOT BATON_BUNDLE)
  find_package(absl CONFIG REQUIRED)
  find_package(nlohmann_json CONFIG REQUIRED)
  find_package(glog CONFIG REQUIRED)
  find_package(PkgConfig REQUIRED)
  pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
  if(BATON_BUILD_TESTS)
    find_package(GTest CONFIG REQUIRED)
  endif()
  return()
endif()

if(NOT EXISTS ${BATON_BUNDLE}/include/absl)
  message(FATAL_ERROR "BATON_BUNDLE: ${BATON_BUNDLE} has no include/absl; "
                      "tools/gpu_bundle makes such a folder")
endif()

# Debian's static libunwind is not for programs that may lie anywhere.
add_link_options(-no-pie)

# baton_bundled(glog::glog glog gflags): a target of these static libraries.
function(baton_bundled target)
  add_library(${target} INTERFACE IMPORTED GLOBAL)
  target_include_directories(${target} SYSTEM
                             INTERFACE ${BATON_BUNDLE}/include)
  foreach(name ${ARGN})
    if(TARGET ${name})
      target_link_libraries(${target} INTERFACE ${name})
    else()
      target_link_libraries(${target}
                            INTERFACE ${BATON_BUNDLE}/lib/lib${name}.a)
    endif()
  endforeach()
endfunction()

# Abseil's libraries need each other; the linker takes what it needs.
file(GLOB absl_libraries ${BATON_BUNDLE}/lib/libabsl_*.a)
add_library(baton_bundled_absl INTERFACE IMPORTED GLOBAL)
target_include_directories(baton_bundled_absl SYSTEM
                           INTERFACE ${BATON_BUNDLE}/include)
target_link_libraries(
  baton_bundled_absl INTERFACE -Wl,--start-group ${absl_libraries}
                               -Wl,--end-group Threads::Threads rt)
foreach(name
        any_invocable
        base
        cleanup
        core_headers
        flat_hash_map
        flat_hash_set
        function_ref
        inlined_vector
        span
        status
        statusor
        str_format
        strings
        synchronization
        time)
  baton_bundled(absl::${name} baton_bundled_absl)
endforeach()
baton_bundled(baton_bundled_gflags gflags)
baton_bundled(glog::glog glog baton_bundled_gflags unwind lzma)
baton_bundled(nlohmann_json::nlohmann_json)
baton_bundled(PkgConfig::XXHASH xxhash)
baton_bundled(GTest::gtest gtest Threads::Threads)
baton_bundled(GTest::gmock gmock GTest::gtest)
baton_bundled(GTest::gtest_main gtest_main GTest::gtest)
