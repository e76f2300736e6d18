# Installs libraries, headers, the CMake package and the pkg-config file. Nothing installed names
# the prefix: the tree may be moved as a whole.

# Not the multiarch folder of the distribution: an own prefix is searched in `lib`.
set(CMAKE_INSTALL_LIBDIR lib CACHE PATH "Folder of the libraries below the prefix")
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(library_folder "${PROJECT_BINARY_DIR}/kvstore")
install(PROGRAMS "${library_folder}/${KVSTORE_SO_REAL}" DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(FILES "${library_folder}/${KVSTORE_SO_NAME}" "${library_folder}/${KVSTORE_SO_LINK}"
  "${library_folder}/libkvstore.a" DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(CODE "
  set(prefix \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}\")
  execute_process(COMMAND \"${CMAKE_STRIP}\" --strip-unneeded
    \"\${prefix}/${CMAKE_INSTALL_LIBDIR}/${KVSTORE_SO_REAL}\" COMMAND_ERROR_IS_FATAL ANY)")
# Debug sections are most of an archive; objects of Rust's standard library also have bitcode.
install(CODE "
  set(prefix \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}\")
  execute_process(COMMAND \"${CMAKE_OBJCOPY}\" --strip-debug --enable-deterministic-archives
    --remove-section=.llvmbc --remove-section=.llvmcmd
    \"\${prefix}/${CMAKE_INSTALL_LIBDIR}/libkvstore.a\" COMMAND_ERROR_IS_FATAL ANY)")
if(KVSTORE_DIST)
  install(PROGRAMS "${KVSTORE_CARGO_TARGET_DIR}/release/kvstore" DESTINATION "${CMAKE_INSTALL_BINDIR}")
  install(CODE "
    set(prefix \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}\")
    execute_process(COMMAND \"${CMAKE_STRIP}\"
      \"\${prefix}/${CMAKE_INSTALL_BINDIR}/kvstore\" COMMAND_ERROR_IS_FATAL ANY)
    set(kvstore \"\${prefix}/${CMAKE_INSTALL_BINDIR}/kvstore\")
    execute_process(COMMAND \"\${kvstore}\" man \"\${prefix}/${CMAKE_INSTALL_MANDIR}/man1\"
      COMMAND_ERROR_IS_FATAL ANY)
    foreach(shell_and_file bash:bash-completion/completions/kvstore zsh:zsh/site-functions/_kvstore
        fish:fish/vendor_completions.d/kvstore.fish)
      string(REPLACE \":\" \";\" shell_and_file \${shell_and_file})
      list(GET shell_and_file 0 shell)
      list(GET shell_and_file 1 file)
      set(file \"\${prefix}/${CMAKE_INSTALL_DATADIR}/\${file}\")
      get_filename_component(folder \"\${file}\" DIRECTORY)
      file(MAKE_DIRECTORY \"\${folder}\")
      execute_process(COMMAND \"\${kvstore}\" completions \${shell} OUTPUT_FILE \"\${file}\"
        COMMAND_ERROR_IS_FATAL ANY)
    endforeach()")
endif()
install(FILES include/kvstore.h bindings/cpp/kvstore.hpp DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")

set(package_folder "${CMAKE_INSTALL_LIBDIR}/cmake/kvstore")
configure_package_config_file(cmake/kvstore-config.cmake.in kvstore-config.cmake
  INSTALL_DESTINATION "${package_folder}"
  PATH_VARS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR
  NO_CHECK_REQUIRED_COMPONENTS_MACRO)
# Before 1.0 a minor version may break sources.
write_basic_package_version_file(kvstore-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/kvstore-config.cmake"
  "${PROJECT_BINARY_DIR}/kvstore-config-version.cmake" DESTINATION "${package_folder}")

set(pkgconfig_folder "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
file(RELATIVE_PATH prefix_from_pkgconfig "/${pkgconfig_folder}" "/")
string(REGEX REPLACE "/$" "" prefix_from_pkgconfig "${prefix_from_pkgconfig}")
list(TRANSFORM KVSTORE_SYSTEM_LIBRARIES PREPEND "-l" OUTPUT_VARIABLE private_libraries)
list(JOIN private_libraries " " private_libraries)
foreach(file kvstore.pc kvstore-shared.pc)
  configure_file(cmake/${file}.in ${file} @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/${file}" DESTINATION "${pkgconfig_folder}")
endforeach()
