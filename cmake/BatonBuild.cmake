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
option(BATON_UNITY "For whole builds: compile many files as one" OFF)
option(BATON_LIBFUZZER
       "With clang: build the fuzz targets, driven by libFuzzer, and nothing else"
       OFF)
set(BATON_SANITIZE "" CACHE STRING
    "Sanitizers for the whole build: empty, 'address,undefined' or 'thread'")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

find_program(BATON_CCACHE ccache)
if(BATON_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${BATON_CCACHE})
endif()

# Many files at a time make GCC collect garbage again and again, some 6 % of
# its time, though memory is there: some 1.6 GB a compiler, 2.3 GB with
# sanitizers. Of all memory, as what is free now would change flags from one
# configuration to the next.
if(BATON_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  cmake_host_system_information(RESULT memory_mb QUERY TOTAL_PHYSICAL_MEMORY)
  cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
  math(EXPR mb_per_core "${memory_mb} / ${cores}")
  if(mb_per_core GREATER_EQUAL 6144)
    add_compile_options(
      $<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-expand=200>
      $<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=1500000>)
  endif()
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
  if(BATON_SANITIZE MATCHES "address")
    # Each check knows its place in the source by address: a million addresses,
    # which a program that may lie anywhere writes anew whenever it starts.
    string(APPEND CMAKE_EXE_LINKER_FLAGS " -no-pie")
  endif()
  if(BATON_SANITIZE STREQUAL "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Boost.Asio has fences, which GCC's ThreadSanitizer does not know; what they
    # order a lock orders as well.
    add_compile_options(-Wno-tsan)
  endif()
endif()

# What each program of a ThreadSanitizer build links, so that it knows the locks
# and the order of libraries that were built without it (docs/testing.md).
set(BATON_TSAN_SUPPORT)
if(BATON_SANITIZE STREQUAL "thread" AND BATON_BUILD_TESTS)
  set(BATON_TSAN_SUPPORT baton_tsan_support)
endif()

if(BATON_LIBFUZZER)
  # Coverage, for libFuzzer; its main comes in tests/fuzz.
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

# A whole build to be tested, of which nobody runs the programs for their speed.
set(BATON_WHOLE_TEST_BUILD OFF)
if(BATON_UNITY AND BATON_BUILD_TESTS
   AND NOT CMAKE_BUILD_TYPE STREQUAL "Release")
  set(BATON_WHOLE_TEST_BUILD ON)
endif()

# A hundred programs, most of them larger than what users run: gold, which comes
# with binutils, links them in a third of the time.
if(BATON_WHOLE_TEST_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  find_program(BATON_GOLD ld.gold)
  if(BATON_GOLD)
    add_link_options(-fuse-ld=gold)
  endif()
endif()

# With ThreadSanitizer such a build has these tests, of code whose threads meet
# ("threads" is their label), and what they need.
set(BATON_ONLY_THREADS OFF)
if(BATON_WHOLE_TEST_BUILD AND BATON_SANITIZE STREQUAL "thread")
  set(BATON_ONLY_THREADS ON)
endif()
set(BATON_THREAD_TESTS
    engine_cpu_thread_team_test
    kv_transfer_host_aware_transport_test
    kv_transfer_local_transport_test
    kv_transfer_tcp_tls_test
    kv_transfer_tcp_visitor_test
    kv_transfer_transport_contract_test
    kv_transfer_ucx_transport_test
    worker_adapter_folder_test
    worker_control_service_test
    worker_file_kv_store_test
    worker_loops_test
    worker_prefix_cache_loops_test
    worker_preemption_loops_test
    worker_run_ahead_loops_test
    router_http_intake_pool_test
    router_http_server_test
    router_http_server_half_close_test
    router_http_server_stream_test
    router_http_server_tls_test
    http_api_test
    http_limits_test
    router_test
    router_failure_test
    router_line_test
    client_test
    integration_answers_test
    integration_dual_worker_test
    integration_requests_test)

# Whether tests run kernels on the device that the CPU plays
# (tests/support/emulated_device), which is built only then. Not in whole builds
# with sanitizers, where they would take longer than all others together, nor
# with ThreadSanitizer, which has not been taught that device's switching of
# stacks.
set(BATON_EMULATED_TESTS ON)
if(BATON_SANITIZE AND (BATON_UNITY OR BATON_SANITIZE STREQUAL "thread"))
  set(BATON_EMULATED_TESTS OFF)
endif()

# For tools/test, which makes several whole builds: the one without a sanitizer
# leaves out tests of these folders, of which it would tell nothing that the one
# with AddressSanitizer and UndefinedBehaviorSanitizer does not. Neither bytes,
# nor numbers, nor the speed of processes are their matter; their folders are
# optimized, and part of all tests that start programs.
option(BATON_TESTS_ONCE "Leave tests out that another build of tools/test has"
       OFF)
set(BATON_FOLDERS_TESTED_ONCE
    "^tests(/(batch|cli|client|common|fuzz|load_generator|planner|proto|router|scheduling|worker|workload)(/.*)?)?$")
function(baton_is_tested_elsewhere result)
  file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  if(BATON_TESTS_ONCE AND NOT BATON_SANITIZE AND folder MATCHES
                                                 "${BATON_FOLDERS_TESTED_ONCE}")
    set(${result} ON PARENT_SCOPE)
  else()
    set(${result} OFF PARENT_SCOPE)
  endif()
endfunction()

# With BATON_UNITY, lets the target's files be compiled forty at a time: most of
# what a file costs is the headers it shares with its neighbours, and what is
# made from their templates. Files that have options of their own stay alone;
# so does, with SKIP_UNITY_BUILD_INCLUSION, one that uses a neighbour's name.
function(baton_join_files target)
  if(BATON_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON
                                               UNITY_BUILD_BATCH_SIZE 40)
  endif()
endfunction()

# Folders whose code calls and waits more than it computes, or is generated. In
# whole builds for tests they are optimized less (-O1, a fifth less to compile),
# and with sanitizers not at all: that would take two or three times as long to
# compile and save their tests next to nothing. Nor, in any whole build for
# tests, is what tests stand on, but where BATON_TESTS_THAT_COMPUTE is set.
set(BATON_FOLDERS_THAT_WAIT
    batch
    cli
    client
    decode_worker
    load_generator
    prefill_worker
    proto
    router
    router/access
    router/console
    router/http
    worker)

# What the current folder is to a whole build for tests: `tests`,
# `computing_tests`, `waits` or, for all else, `computes`.
function(baton_kind_of_folder kind)
  file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  if(folder MATCHES "^tests/" AND BATON_TESTS_THAT_COMPUTE)
    set(${kind} computing_tests PARENT_SCOPE)
  elseif(folder MATCHES "^tests/")
    set(${kind} tests PARENT_SCOPE)
  elseif(folder IN_LIST BATON_FOLDERS_THAT_WAIT)
    set(${kind} waits PARENT_SCOPE)
  else()
    set(${kind} computes PARENT_SCOPE)
  endif()
endfunction()

# What such a build leaves out of a target of that kind, to be short.
function(baton_compile_quickly target kind)
  if(kind STREQUAL computes)
    return()
  endif()
  baton_check_fewer_pointers(${target})
  if(kind STREQUAL tests OR (kind STREQUAL waits AND BATON_SANITIZE))
    target_compile_options(${target} PRIVATE -O0)
  else()
    target_compile_options(${target} PRIVATE -O1)
  endif()
endfunction()

# And out of a library or program of the current folder.
function(baton_build_quickly target)
  if(BATON_WHOLE_TEST_BUILD)
    baton_kind_of_folder(kind)
    baton_compile_quickly(${target} ${kind})
  endif()
endfunction()

# In whole builds, leaves out what UndefinedBehaviorSanitizer asks of every
# pointer that is used: a third of the time that a file of such code takes to
# compile. AddressSanitizer stops at null pointers and at what lies outside of
# an object all the same. For code that does not lay bytes out itself; all else,
# and every file of a build that is not a whole one, is asked everything.
function(baton_check_fewer_pointers target)
  if(BATON_UNITY AND BATON_SANITIZE MATCHES "undefined")
    target_compile_options(
      ${target} PRIVATE -fno-sanitize=null,alignment,vptr,object-size)
  endif()
endfunction()

# baton_library(NAME engine_cpu SOURCES a.cc DEPS baton::common absl::strings)
# makes the static library baton::engine_cpu. Headers are found from the root
# of the tree ("engine/cpu/a.h"). DEPS are public: what a folder's headers may
# include is what this call lists. With ALONE it is joined to no other.
function(baton_library)
  cmake_parse_arguments(ARG "ALONE" "NAME" "SOURCES;DEPS" ${ARGN})
  baton_group_of(group "${BATON_LIBRARY_GROUPS}")
  if(ARG_SOURCES AND group AND NOT ARG_ALONE)
    baton_join_library(${ARG_NAME} ${group} "${ARG_SOURCES}" "${ARG_DEPS}")
  elseif(ARG_SOURCES)
    add_library(baton_${ARG_NAME} STATIC ${ARG_SOURCES})
    target_include_directories(baton_${ARG_NAME} PUBLIC ${PROJECT_SOURCE_DIR})
    target_link_libraries(baton_${ARG_NAME} PUBLIC ${ARG_DEPS}
                                            PRIVATE baton_flags)
    baton_join_files(baton_${ARG_NAME})
    baton_build_quickly(baton_${ARG_NAME})
  else()
    add_library(baton_${ARG_NAME} INTERFACE)
    target_include_directories(baton_${ARG_NAME}
                               INTERFACE ${PROJECT_SOURCE_DIR})
    target_link_libraries(baton_${ARG_NAME} INTERFACE ${ARG_DEPS})
  endif()
  add_library(baton::${ARG_NAME} ALIAS baton_${ARG_NAME})
endfunction()

# In whole builds for tests, the libraries of these folders (a regular
# expression) are compiled as one, which has the name behind it: the less often
# the same headers are read and the same templates made, the sooner all is
# built. Who links one of them then links all of them; who may is what
# layering_test asks, and whether they list what they use library_deps_test.
set(BATON_LIBRARY_GROUPS
    "^common(/|$)" common
    "^kv_transfer(/|$)" kv_transfer
    "^((prefill_|decode_|dual_)?worker)$" workers
    "^router(/|$)" router
    "^(batch|cli|load_generator|model_tools|workload)$" cli
    "^tests/(support|golden|engine(/cuda)?|router/(http|tool_calls))$"
    tests_support)
# And so are the tests of these.
set(BATON_TEST_GROUPS
    "^tests/kv_transfer(/|$)" tests_kv_transfer
    "^tests/router(/|$)" tests_router
    "^tests(/(batch|cli|client|common|load_generator|model_tools|planner|proto|workload))?$"
    tests_others)

# The name that `groups` have for the current folder; empty for none.
function(baton_group_of name groups)
  set(${name} "" PARENT_SCOPE)
  if(NOT BATON_WHOLE_TEST_BUILD OR BATON_ENGINE_ONLY)
    return()
  endif()
  file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  while(groups)
    list(POP_FRONT groups folders group)
    if(folder MATCHES "${folders}")
      set(${name} ${group} PARENT_SCOPE)
      return()
    endif()
  endwhile()
endfunction()

# Folders of several kinds are several libraries.
function(baton_join_library name group sources deps)
  baton_kind_of_folder(kind)
  string(APPEND group "_${kind}")
  get_property(known GLOBAL PROPERTY BATON_JOINED_LIBRARIES)
  if(NOT group IN_LIST known)
    set_property(GLOBAL APPEND PROPERTY BATON_JOINED_LIBRARIES ${group})
    set_property(GLOBAL PROPERTY BATON_JOINED_${group}_KIND ${kind})
    if(NOT known)
      cmake_language(DEFER DIRECTORY ${PROJECT_SOURCE_DIR} CALL
                     baton_make_joined_libraries)
    endif()
  endif()
  foreach(source ${sources})
    cmake_path(ABSOLUTE_PATH source NORMALIZE)
    set_property(GLOBAL APPEND PROPERTY BATON_JOINED_${group}_SOURCES ${source})
    set_property(GLOBAL PROPERTY BATON_FOLDER_OF_${source}
                                 ${CMAKE_CURRENT_SOURCE_DIR})
  endforeach()
  set_property(GLOBAL APPEND PROPERTY BATON_JOINED_${group}_DEPS ${deps})
  add_library(baton_${name} INTERFACE)
  target_include_directories(baton_${name} INTERFACE ${PROJECT_SOURCE_DIR})
  target_link_libraries(baton_${name} INTERFACE baton_joined_${group} ${deps})
  set_target_properties(baton_${name} PROPERTIES BATON_JOINED ${group})
endfunction()

# At the end, when all of their sources are known.
function(baton_make_joined_libraries)
  get_property(groups GLOBAL PROPERTY BATON_JOINED_LIBRARIES)
  foreach(group ${groups})
    set(target baton_joined_${group})
    foreach(what KIND SOURCES DEPS OPTIONS DEFINITIONS)
      get_property(${what} GLOBAL PROPERTY BATON_JOINED_${group}_${what})
    endforeach()
    list(REMOVE_DUPLICATES SOURCES)
    list(REMOVE_DUPLICATES DEPS)
    add_library(${target} STATIC EXCLUDE_FROM_ALL ${SOURCES})
    foreach(source ${SOURCES})
      get_property(folder GLOBAL PROPERTY BATON_FOLDER_OF_${source})
      foreach(property COMPILE_OPTIONS COMPILE_DEFINITIONS
                       SKIP_UNITY_BUILD_INCLUSION)
        get_property(
          value
          SOURCE ${source}
          DIRECTORY ${folder}
          PROPERTY ${property})
        if(value)
          set_property(SOURCE ${source} PROPERTY ${property} ${value})
        endif()
      endforeach()
    endforeach()
    target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR})
    target_link_libraries(${target} PUBLIC ${DEPS} PRIVATE baton_flags)
    baton_compile_quickly(${target} ${KIND})
    target_compile_options(${target} PRIVATE ${OPTIONS})
    target_compile_definitions(${target} PRIVATE ${DEFINITIONS})
    baton_join_files(${target})
  endforeach()
endfunction()

# DEFINITIONS or OPTIONS that the files of a library are compiled with, joined to
# others or not.
function(baton_compile_library name what)
  get_target_property(group baton_${name} BATON_JOINED)
  if(group)
    set_property(GLOBAL APPEND PROPERTY BATON_JOINED_${group}_${what} ${ARGN})
  elseif(what STREQUAL "OPTIONS")
    target_compile_options(baton_${name} PRIVATE ${ARGN})
  else()
    target_compile_definitions(baton_${name} PRIVATE ${ARGN})
  endif()
endfunction()

# baton_executable(NAME baton-router SOURCES main.cc DEPS baton::router)
function(baton_executable)
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;DEPS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SOURCES})
  target_include_directories(${ARG_NAME} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_DEPS} baton_flags
                                            ${BATON_TSAN_SUPPORT})
  baton_build_quickly(${ARG_NAME})
  install(TARGETS ${ARG_NAME} RUNTIME DESTINATION bin)
endfunction()

# baton_test(NAME block_pool_test SOURCES block_pool_test.cc DEPS ...
#            LABELS unit [TIMEOUT seconds] [NEEDS target ...] [UNLISTED])
# makes a GoogleTest program; with BATON_UNITY, one of all tests of the folder,
# of which each test runs its own part. Every test may take BATON_SOURCE_DIR and
# BATON_BINARY_DIR (compile definitions) to find data and programs. NEEDS names
# targets whose programs the test starts. One that is UNLISTED is a part of the
# program, and none of ctest's tests.
function(baton_test)
  cmake_parse_arguments(ARG "UNLISTED" "NAME;TIMEOUT"
                        "SOURCES;DEPS;LABELS;NEEDS" ${ARGN})
  if(ARG_NAME IN_LIST BATON_THREAD_TESTS)
    list(APPEND ARG_LABELS threads)
    set_property(GLOBAL APPEND PROPERTY BATON_THREAD_TESTS_FOUND ${ARG_NAME})
  elseif(BATON_ONLY_THREADS)
    return()
  endif()
  baton_is_tested_elsewhere(elsewhere)
  if(elsewhere)
    return()
  endif()
  if(BATON_UNITY)
    baton_test_in_folder_program(command ${ARG_NAME} "${ARG_SOURCES}"
                                 "${ARG_DEPS}")
  else()
    baton_test_program(${ARG_NAME} "${ARG_SOURCES}"
                       "${ARG_DEPS};GTest::gtest_main")
    set(command ${ARG_NAME})
  endif()
  list(GET command 0 program)
  if(ARG_NEEDS)
    add_dependencies(${program} ${ARG_NEEDS})
  endif()
  if(ARG_UNLISTED)
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_test(NAME ${ARG_NAME} COMMAND ${command})
  # What may take long starts first.
  set_tests_properties(
    ${ARG_NAME}
    PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} COST
               ${ARG_TIMEOUT} ENVIRONMENT "${BATON_TEST_ENVIRONMENT}")
endfunction()

# The GoogleTest program of one test.
function(baton_test_program name sources deps)
  add_executable(${name} ${sources})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY
                                           ${CMAKE_BINARY_DIR}/tests/bin)
  baton_set_up_test_target(${name} "${deps}")
endfunction()

# What every target of tests has.
function(baton_set_up_test_target name deps)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_definitions(
    ${name} PRIVATE BATON_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
                    BATON_BINARY_DIR="${CMAKE_BINARY_DIR}")
  target_link_libraries(${name} PRIVATE ${deps} GTest::gmock baton_flags
                                        ${BATON_TSAN_SUPPORT})
endfunction()

# Adds a test to the program of its folder or group of folders, which runs the
# tests of the files that it is given (tests/support/folder_main.cc), and sets
# `command`. A folder may have some of them in an object library,
# BATON_TESTS_IN_OBJECTS, which it links itself.
function(baton_test_in_folder_program command name sources deps)
  file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  baton_group_of(program "${BATON_TEST_GROUPS}")
  if(NOT program)
    string(REPLACE "/" "_" program ${folder})
  elseif(BATON_TESTS_THAT_COMPUTE)
    string(APPEND program _computing)
  endif()
  if(NOT TARGET ${program})
    baton_test_program(${program}
                       ${PROJECT_SOURCE_DIR}/tests/support/folder_main.cc "")
    baton_join_files(${program})
    baton_check_fewer_pointers(${program})
    # Optimizing a test takes longer than running it, but for those that
    # compute; their folders say so.
    if(NOT BATON_TESTS_THAT_COMPUTE)
      target_compile_options(${program} PRIVATE -O0)
    endif()
  endif()
  set(files)
  foreach(source ${sources})
    list(APPEND files ${folder}/${source})
    if(source IN_LIST BATON_TESTS_IN_OBJECTS)
      continue()
    endif()
    cmake_path(ABSOLUTE_PATH source NORMALIZE)
    get_target_property(present ${program} SOURCES)
    if(NOT source IN_LIST present)
      target_sources(${program} PRIVATE ${source})
    endif()
  endforeach()
  list(JOIN files "," files)
  target_link_libraries(${program} PRIVATE ${deps})
  set(${command} ${program} --only=${files} PARENT_SCOPE)
endfunction()

# UCX keeps a few bytes of its environment strings; its memory hooks and TSan
# do not go together (docs/testing.md).
set(BATON_TEST_ENVIRONMENT
    "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tools/lsan.supp"
    "UBSAN_OPTIONS=print_stacktrace=1"
    "no_proxy=127.0.0.1,localhost"
    "NO_PROXY=127.0.0.1,localhost")
if(BATON_SANITIZE STREQUAL "thread")
  list(APPEND BATON_TEST_ENVIRONMENT "UCX_MEM_EVENTS=n")
endif()
