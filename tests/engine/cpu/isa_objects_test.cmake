# Fails when an object that was compiled for one instruction set holds a
# function that the linker could merge with another file's copy, or calls more
# than it should: such a function could end up in a program's common path and
# stop a CPU that lacks the instructions. Takes NM and OBJECTS (joined by "|").
string(REPLACE "|" ";" objects "${OBJECTS}")
list(FILTER objects INCLUDE REGEX "/(kernels|ceilings)_[a-z0-9]+\\.cc\\.o$")
list(LENGTH objects count)
if(count LESS 6)
  message(FATAL_ERROR "expected six objects, found: ${objects}")
endif()
set(allowed_undefined
    "^(memcpy|memset|memmove|_GLOBAL_OFFSET_TABLE_|__stack_chk_fail)$")
foreach(object ${objects})
  execute_process(
    COMMAND ${NM} --format=posix ${object}
    OUTPUT_VARIABLE symbols
    COMMAND_ERROR_IS_FATAL ANY)
  string(REPLACE "\n" ";" symbols "${symbols}")
  foreach(symbol ${symbols})
    string(REGEX MATCH "^([^ ]+) ([A-Za-z])" matched "${symbol}")
    set(name "${CMAKE_MATCH_1}")
    set(type "${CMAKE_MATCH_2}")
    if(type MATCHES "[TWVuwv]")
      message(SEND_ERROR "${object}: shares ${name} with other files")
    elseif(type STREQUAL "U" AND NOT name MATCHES "${allowed_undefined}")
      message(SEND_ERROR "${object}: calls ${name}")
    endif()
  endforeach()
endforeach()
