# How every folder of Baton is built: language level, warnings, sanitizers and
# the three calls that folders use (baton_library, baton_executable,
# baton_test).
include_guard()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

option(BATON_BUILD_TESTS "Build the tests" ON)
option(BATON_WERROR "Treat warnings in our own code as errors" ON)
set(BATON_SANITIZE "" CACHE STRING
    "Sanitizers for the whole build: empty, 'address,undefined' or 'thread'")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

find_program(BATON_CCACHE ccache)
if(BATON_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${BATON_CCACHE})
endif()

add_library(baton_flags INTERFACE)
target_compile_options(baton_flags INTERFACE -Wall -Wextra
                                             -Wno-unused-parameter
                                             -Wno-missing-field-initializers)
if(BATON_WERROR)
  target_compile_options(baton_flags INTERFACE -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # False alarms of GCC 12 on moved std::variant and std::optional.
  target_compile_options(baton_flags INTERFACE -Wno-maybe-uninitialized)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  target_compile_options(baton_flags INTERFACE -Wthread-safety)
endif()

if(BATON_SANITIZE)
  add_compile_options(-fsanitize=${BATON_SANITIZE} -fno-omit-frame-pointer
                      -fno-sanitize-recover=undefined)
  add_link_options(-fsanitize=${BATON_SANITIZE})
endif()

# baton_library(NAME engine_cpu SOURCES a.cc DEPS baton::common absl::strings)
# makes the static library baton::engine_cpu. Headers are found from the root
# of the tree ("engine/cpu/a.h"). DEPS are public: what a folder's headers may
# include is what this call lists.
function(baton_library)
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;DEPS" ${ARGN})
  if(ARG_SOURCES)
    add_library(baton_${ARG_NAME} STATIC ${ARG_SOURCES})
    target_include_directories(baton_${ARG_NAME} PUBLIC ${PROJECT_SOURCE_DIR})
    target_link_libraries(baton_${ARG_NAME} PUBLIC ${ARG_DEPS}
                                            PRIVATE baton_flags)
  else()
    add_library(baton_${ARG_NAME} INTERFACE)
    target_include_directories(baton_${ARG_NAME}
                               INTERFACE ${PROJECT_SOURCE_DIR})
    target_link_libraries(baton_${ARG_NAME} INTERFACE ${ARG_DEPS})
  endif()
  add_library(baton::${ARG_NAME} ALIAS baton_${ARG_NAME})
endfunction()

# baton_executable(NAME baton-router SOURCES main.cc DEPS baton::router)
function(baton_executable)
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;DEPS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SOURCES})
  target_include_directories(${ARG_NAME} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_DEPS} baton_flags)
  install(TARGETS ${ARG_NAME} RUNTIME DESTINATION bin)
endfunction()

# baton_test(NAME block_pool_test SOURCES block_pool_test.cc DEPS ...
#            LABELS unit [TIMEOUT seconds] [NEEDS target ...])
# makes a GoogleTest program. Every test may take BATON_SOURCE_DIR and
# BATON_BINARY_DIR (compile definitions) to find data and programs. NEEDS names
# targets whose programs the test starts.
function(baton_test)
  cmake_parse_arguments(ARG "" "NAME;TIMEOUT" "SOURCES;DEPS;LABELS;NEEDS"
                        ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SOURCES})
  set_target_properties(${ARG_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY
                                               ${CMAKE_BINARY_DIR}/tests/bin)
  target_include_directories(${ARG_NAME} PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_definitions(
    ${ARG_NAME} PRIVATE BATON_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
                        BATON_BINARY_DIR="${CMAKE_BINARY_DIR}")
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_DEPS} GTest::gmock
                                            GTest::gtest_main baton_flags)
  if(TARGET baton_absl_mutex_tsan) # TSan builds: tests/support
    target_link_libraries(${ARG_NAME} PRIVATE baton_absl_mutex_tsan)
  endif()
  if(ARG_NEEDS)
    add_dependencies(${ARG_NAME} ${ARG_NEEDS})
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_test(NAME ${ARG_NAME} COMMAND ${ARG_NAME})
  set_tests_properties(
    ${ARG_NAME}
    PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} ENVIRONMENT
               "${BATON_TEST_ENVIRONMENT}")
endfunction()

# UCX keeps a few bytes of its environment strings; its memory hooks and TSan
# do not go together (docs/testing.md).
set(BATON_TEST_ENVIRONMENT
    "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tools/lsan.supp"
    "TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tools/tsan.supp ignore_noninstrumented_modules=1"
    "UBSAN_OPTIONS=print_stacktrace=1")
if(BATON_SANITIZE STREQUAL "thread")
  list(APPEND BATON_TEST_ENVIRONMENT "UCX_MEM_EVENTS=n")
endif()
