# What `cmake --install` puts where besides the programs, and the Debian package
# (`cpack -G DEB` in the build folder).
include_guard()
include(GNUInstallDirs)

install(FILES ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/CHANGELOG.md
        DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/baton)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs/
        DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/baton
        FILES_MATCHING
        PATTERN "*.md"
        PATTERN "*.png")
# `baton up` without --model finds it.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/models/stories
        DESTINATION ${CMAKE_INSTALL_DATADIR}/baton/models)
# Examples that one edits: not below /etc before they are.
install(
  DIRECTORY ${PROJECT_SOURCE_DIR}/deploy/
  DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/baton/examples
  PATTERN "docker" EXCLUDE
  PATTERN "debian" EXCLUDE
  PATTERN "*.service" EXCLUDE
  PATTERN "*.py" EXCLUDE
  PATTERN ".gitignore" EXCLUDE
  # What `baton up --prometheus-targets` wrote there.
  PATTERN "targets/*.json" EXCLUDE
  PATTERN "__pycache__" EXCLUDE)
file(GLOB BATON_UNITS ${PROJECT_SOURCE_DIR}/deploy/systemd/*.service)
install(FILES ${BATON_UNITS} DESTINATION lib/systemd/system)

# Written by the programs themselves, so that they tell of each flag.
find_program(BATON_HELP2MAN help2man)
foreach(program baton baton-router baton-prefill baton-decode baton-worker)
  foreach(
    shell_path
    "bash:bash-completion/completions/${program}"
    "zsh:zsh/site-functions/_${program}"
    "fish:fish/vendor_completions.d/${program}.fish")
    string(REPLACE ":" ";" pair ${shell_path})
    list(GET pair 0 shell)
    list(GET pair 1 path)
    set(ask --completion)
    if(program STREQUAL baton)
      set(ask completion)
    endif()
    set(file "\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}/${path}")
    install(
      CODE "get_filename_component(folder \"${file}\" DIRECTORY)
file(MAKE_DIRECTORY \"\${folder}\")
message(STATUS \"Writing: ${file}\")
execute_process(COMMAND \"$<TARGET_FILE:${program}>\" ${ask} ${shell}
                OUTPUT_FILE \"${file}\" COMMAND_ERROR_IS_FATAL ANY)")
  endforeach()
endforeach()
if(BATON_HELP2MAN)
  foreach(
    page
    "baton=start, ask, measure and plan a cluster that serves language models"
    "baton-router=takes requests and places them on workers"
    "baton-prefill=computes prompts and hands their KV over"
    "baton-decode=writes answers, token by token"
    "baton-worker=computes prompts or writes answers, whichever is needed")
    string(REGEX REPLACE "=.*" "" program "${page}")
    string(REGEX REPLACE "^[^=]*=" "" summary "${page}")
    set(file "\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}/man/man1/${program}.1")
    install(
      CODE "get_filename_component(folder \"${file}\" DIRECTORY)
file(MAKE_DIRECTORY \"\${folder}\")
message(STATUS \"Writing: ${file}\")
execute_process(
  COMMAND \"${BATON_HELP2MAN}\" --no-info --source=Baton
          \"--name=${summary}\"
          --include=${PROJECT_SOURCE_DIR}/cmake/man_pages.h2m
          --output=${file} \"$<TARGET_FILE:${program}>\"
  COMMAND_ERROR_IS_FATAL ANY)")
  endforeach()
else()
  message(STATUS "help2man: not found; no man pages are installed (optional)")
endif()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME baton)
set(CPACK_PACKAGE_VENDOR "The Baton authors")
set(CPACK_PACKAGE_CONTACT "The Baton authors <baton@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY
    "Serves large language models on pools of prefill and decode workers")
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_STRIP_FILES ON)
# Below /usr, whatever the build's own prefix is.
set(CPACK_SET_DESTDIR ON)
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
# What the programs are linked with, from dpkg's own lists.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS ca-certificates)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA
    ${PROJECT_SOURCE_DIR}/deploy/systemd/debian/postinst
    ${PROJECT_SOURCE_DIR}/deploy/systemd/debian/prerm
    ${PROJECT_SOURCE_DIR}/deploy/systemd/debian/postrm)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
include(CPack)
