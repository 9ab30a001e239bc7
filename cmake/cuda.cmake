# The CUDA device: a module that the library loads at run time, so that nothing else needs CUDA.
set(SLUICE_CUDA AUTO CACHE STRING "Build the CUDA module: ON insists, AUTO does if nvcc and cuBLASLt are found, OFF does not")
set_property(CACHE SLUICE_CUDA PROPERTY STRINGS AUTO ON OFF)

set(SLUICE_BUILD_CUDA OFF)
if(SLUICE_CUDA STREQUAL "ON" OR (SLUICE_CUDA STREQUAL "AUTO" AND NOT SLUICE_SANITIZE))
  include(CheckLanguage)
  if(NOT DEFINED CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(SLUICE_NVCC nvcc HINTS /usr/local/cuda/bin)
    if(SLUICE_NVCC)
      set(ENV{CUDACXX} ${SLUICE_NVCC})
    endif()
  endif()
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80 90a-real) # code for newer ones is made from that for 80 as it is loaded
  endif()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    find_package(CUDAToolkit QUIET)
  endif()
  if(CMAKE_CUDA_COMPILER AND TARGET CUDA::cublasLt)
    set(SLUICE_BUILD_CUDA ON)
  elseif(SLUICE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "SLUICE_CUDA is ON, but CUDA's compiler (nvcc) or cuBLASLt was not found")
  endif()
endif()
message(STATUS "CUDA module: ${SLUICE_BUILD_CUDA}")

if(SLUICE_BUILD_CUDA)
  file(GLOB SLUICE_CUDA_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cuda/*.c ${PROJECT_SOURCE_DIR}/src/cuda/*.cu)
  # --fmad=false: a formula gives the same bits in every kernel that has it.
  # What the module needs of the library is small and without state: it has its own copy.
  add_library(sluice_cuda MODULE ${SLUICE_CUDA_SOURCES} ${PROJECT_SOURCE_DIR}/src/kernel/call.c ${PROJECT_SOURCE_DIR}/src/kernel/fused.c ${PROJECT_SOURCE_DIR}/src/kernel/gpu_scratch.c
              ${PROJECT_SOURCE_DIR}/src/tensor/meta.c ${PROJECT_SOURCE_DIR}/src/base/dtype.c)
  target_include_directories(sluice_cuda PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  find_path(SLUICE_CUDNN_INCLUDE cudnn_graph.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  set(SLUICE_CUDA_SM90A 0)
  if(CMAKE_CUDA_ARCHITECTURES MATCHES "90a") # kernels that use what only sm_90a has
    set(SLUICE_CUDA_SM90A 1)
  endif()
  target_compile_definitions(sluice_cuda PRIVATE _GNU_SOURCE CUDA_HAS_SM90A=${SLUICE_CUDA_SM90A})
  if(SLUICE_CUDNN_INCLUDE) # the library is loaded at run time if it is there
    set_source_files_properties(${PROJECT_SOURCE_DIR}/src/cuda/dnn.c ${PROJECT_SOURCE_DIR}/src/cuda/dnn_graph.c PROPERTIES
                                COMPILE_DEFINITIONS CUDA_HAS_DNN=1 INCLUDE_DIRECTORIES ${SLUICE_CUDNN_INCLUDE})
  endif()
  target_compile_options(sluice_cuda PRIVATE
    $<$<COMPILE_LANGUAGE:C>:-Wall -Wextra -Wshadow -Wconversion -ffp-contract=off $<$<BOOL:${SLUICE_WERROR}>:-Werror>>
    $<$<COMPILE_LANGUAGE:CUDA>:--fmad=false -Xcompiler=-Wall,-Wextra,-Wshadow --Wreorder
      $<$<BOOL:${SLUICE_WERROR}>:-Xcompiler=-Werror -Werror=all-warnings>>)
  target_link_libraries(sluice_cuda PRIVATE CUDA::cublasLt CUDA::cudart_static Threads::Threads ${CMAKE_DL_LIBS})
  target_link_options(sluice_cuda PRIVATE -Wl,-Bsymbolic -Wl,--no-undefined)
  set_target_properties(sluice_cuda PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR} CUDA_STANDARD 17
                        CUDA_VISIBILITY_PRESET hidden INSTALL_RPATH_USE_LINK_PATH ON)
  install(TARGETS sluice_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/sluice)
endif()
