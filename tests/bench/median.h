/* SPDX-License-Identifier: GPL-2.0 */
#ifndef CSF_BENCH_MEDIAN_H
#define CSF_BENCH_MEDIAN_H

#include <stdlib.h>

static int compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Sorts the values. */
static inline double median(double *values, size_t n)
{
	qsort(values, n, sizeof(*values), compare_doubles);
	return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

#endif /* CSF_BENCH_MEDIAN_H */
