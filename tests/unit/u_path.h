/* SPDX-License-Identifier: GPL-2.0 */
/* Where the library finds the pages in a unit test: files that the test makes. */
#ifndef U_PATH_H
#define U_PATH_H

#define U_PATH_LEN 256

#ifdef __cplusplus
extern "C" {
#endif
extern char u_thread_path[U_PATH_LEN], u_cpu_path[U_PATH_LEN];
#ifdef __cplusplus
}
#endif

#define CSF_THREAD_PATH u_thread_path
#define CSF_CPU_PATH u_cpu_path

#endif /* U_PATH_H */
