# find_package(sluice) gives the target sluice::sluice.
include("${CMAKE_CURRENT_LIST_DIR}/sluiceTargets.cmake")
