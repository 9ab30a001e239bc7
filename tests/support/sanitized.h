/* TEST_SANITIZED, 1 or 0: a sanitizer slows everything down and takes memory of its own, so no test measures either.
 * TEST_THREAD_SANITIZED: it is the thread sanitizer. */
#ifndef TESTS_SUPPORT_SANITIZED_H
#define TESTS_SUPPORT_SANITIZED_H

#ifdef __has_feature /* clang; gcc defines the names below itself */
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#if __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ 1
#endif
#endif

#ifdef __SANITIZE_THREAD__
#define TEST_THREAD_SANITIZED 1
#else
#define TEST_THREAD_SANITIZED 0
#endif

#ifdef __SANITIZE_ADDRESS__
#define TEST_SANITIZED 1
#else
#define TEST_SANITIZED TEST_THREAD_SANITIZED
#endif

#endif
