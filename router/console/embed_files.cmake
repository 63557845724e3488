# Writes OUTPUT, a C++ file with the bytes of FILES (paths separated by '|'):
#   cmake -DOUTPUT=... -DFILES=a|b -P embed_files.cmake
# "index.html" is served at "/", any other file at "/console/NAME".
cmake_minimum_required(VERSION 3.25)

set(type_html "text/html; charset=utf-8")
set(type_css "text/css; charset=utf-8")
set(type_js "text/javascript; charset=utf-8")
set(type_svg "image/svg+xml")

string(REPLACE "|" ";" FILES "${FILES}")
set(bodies "")
set(entries "")
set(index 0)
foreach(file IN LISTS FILES)
  cmake_path(GET file FILENAME name)
  cmake_path(GET file EXTENSION LAST_ONLY extension)
  string(SUBSTRING "${extension}" 1 -1 extension)
  if(NOT DEFINED type_${extension})
    message(FATAL_ERROR "${file}: no content type is known for it")
  endif()
  set(path "/console/${name}")
  if(name STREQUAL "index.html")
    set(path "/")
  endif()

  # As string literals of 16 bytes each: compilers are quick with those.
  file(READ ${file} hex HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "\\\\x\\1" escaped "${hex}")
  string(REPEAT "\\\\x[0-9a-f][0-9a-f]" 16 sixteen)
  string(REGEX REPLACE "(${sixteen})" "\\1\"\n    \"" escaped "${escaped}")
  file(SHA256 ${file} digest)
  string(SUBSTRING "${digest}" 0 20 digest)

  string(APPEND bodies "constexpr char kBody${index}[] =\n    \"${escaped}\";\n")
  string(APPEND entries
         "    {\"${path}\", \"${type_${extension}}\",\n"
         "     absl::string_view(kBody${index}, sizeof(kBody${index}) - 1),\n"
         "     \"\\\"${digest}\\\"\"},\n")
  math(EXPR index "${index} + 1")
endforeach()

file(WRITE ${OUTPUT} "// Made by router/console/embed_files.cmake.
#include \"router/console/console_files.h\"

namespace baton::router {
namespace {

${bodies}
constexpr ConsoleFile kFiles[] = {
${entries}};

}  // namespace

absl::Span<const ConsoleFile> ConsoleFiles() { return kFiles; }

}  // namespace baton::router
")
