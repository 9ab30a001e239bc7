# What `cmake --install` puts where: headers, library, program, pkg-config file, CMake package, man pages, completion.
include(CMakePackageConfigHelpers)
option(SLUICE_INSTALL_STATIC "Install libsluice.a beside libsluice.so" OFF)

install(DIRECTORY include/sluice DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(TARGETS sluice EXPORT sluiceTargets)
install(TARGETS sluice_program)
if(SLUICE_INSTALL_STATIC)
  install(TARGETS sluice_static)
endif()

file(RELATIVE_PATH PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /) # the installed tree may be moved
string(REGEX REPLACE "/$" "" PC_PREFIX "${PC_PREFIX}")
set(PC_PRIVATE "")
foreach(module JANSSON CAIRO XXHASH YAML PCRE2)
  list(TRANSFORM ${module}_LIBRARIES PREPEND "-l" OUTPUT_VARIABLE libraries)
  list(APPEND PC_PRIVATE ${libraries})
endforeach()
list(JOIN PC_PRIVATE " " PC_PRIVATE)
configure_file(cmake/sluice.pc.in sluice.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/sluice.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

set(PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/sluice)
write_basic_package_version_file(sluiceConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(EXPORT sluiceTargets NAMESPACE sluice:: DESTINATION ${PACKAGE_DIR})
install(FILES cmake/sluiceConfig.cmake ${PROJECT_BINARY_DIR}/sluiceConfigVersion.cmake DESTINATION ${PACKAGE_DIR})

install(FILES LICENSE README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES tools/completion/sluice.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
        RENAME sluice)

if(NOT SLUICE_SANITIZE) # the program writes its own pages
  add_custom_command(OUTPUT man.stamp
    COMMAND ${CMAKE_COMMAND} -DPROGRAM=$<TARGET_FILE:sluice_program> -DOUTPUT=${PROJECT_BINARY_DIR}/man1
            -P ${PROJECT_SOURCE_DIR}/cmake/man_pages.cmake
    COMMAND ${CMAKE_COMMAND} -E touch man.stamp
    DEPENDS sluice_program cmake/man_pages.cmake COMMENT "Man pages")
  add_custom_target(man_pages ALL DEPENDS man.stamp)
  install(DIRECTORY ${PROJECT_BINARY_DIR}/man1 DESTINATION ${CMAKE_INSTALL_MANDIR})
endif()
