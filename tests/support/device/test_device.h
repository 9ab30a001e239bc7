/* A device for the tests alone that behaves like a GPU on machines that have none.
 *
 * - Its memory is out of the host's reach: the addresses it gives out are mapped without any access, and the memory
 *   itself is mapped elsewhere, for its streams alone. A host that reads or writes it dies of SIGSEGV.
 * - A stream is a thread. It starts late, pauses at random, and knows of other streams only what events tell it.
 * - Copies are asynchronous: host memory is read and written when the stream gets there.
 * - Kernels are those of the cpu, run by the stream on the memory behind the addresses. A kernel or a copy that is given
 *   a host pointer for device memory, or the other way round, is an error at once.
 * - A capture is the list of what the stream was given; events and waits for the stream fail meanwhile, as on a GPU.
 *
 * SLUICE_TEST_SEED chooses another order of pauses. */
#ifndef TESTS_SUPPORT_TEST_DEVICE_H
#define TESTS_SUPPORT_TEST_DEVICE_H

#include <sluice/device.h>

/* Makes sl_device_open("test", ...) work in this process; as often as one likes. */
void test_device_install(void);

/* What SLUICE_TEST_DEVICE says, else "cpu": the device on which a test runs that is registered for both. Installs the
 * test device if it is that. */
const char *test_device_spec(void);

/* A kernel of one's own: fn(copy of the args) in the order of the stream; at once on other devices. */
typedef void (*test_kernel)(const void *args);
sl_status test_device_launch(sl_stream *stream, test_kernel fn, const void *args, size_t bytes);

/* Where the memory behind an address is, for kernels; other addresses are given back unchanged. */
void *test_device_near(const void *address);

/* For tests of the device itself: waits for events are dropped from now on, or no longer. */
void test_device_ignore_waits(bool ignore);
/* Devices that are opened from now on do not reach each other's memory, or do again. */
void test_device_set_apart(bool apart);
/* Captures that were launched so far. */
int64_t test_device_launches(void);
/* Streams that became part of the capture of another one so far. */
int64_t test_device_branches(void);
/* Milliseconds that each stream pauses before each piece of work, instead of now and then; 0: as it comes. */
void test_device_set_pause(double milliseconds);

/* ---- NCCL ------------------------------------------------------------------------------------
 * The device comes with what stands in for NCCL between ranks that are threads; their links use it if
 * SLUICE_DEVICE_LINKS is nccl. */
void test_nccl_refuse(bool refuse); /* no communicator can be made from now on, or again */
void test_nccl_hold(bool hold);     /* no communicator becomes ready from now on, or again */
void test_nccl_break(void);         /* all communicators report an error from now on */
int test_nccl_count(int *opened);   /* ends that are open now, and that were opened since the last clear */
void test_nccl_clear(void);         /* when no rank uses it any more */

/* ---- MPI -------------------------------------------------------------------------------------
 * And with what stands in for an MPI that takes device memory; links use it if SLUICE_DEVICE_LINKS is mpi. */
void test_mpi_refuse(bool refuse); /* it takes no device memory from now on, or again */
void test_mpi_break(bool broken);  /* posting fails from now on, or works again */
int test_mpi_count(int *open);     /* messages that have passed so far, and that are posted and not done */

#endif
