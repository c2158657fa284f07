// SPDX-License-Identifier: GPL-2.0
#include "hist.h"

#include <json-c/json.h>

static void add_number(struct json_object *o, const char *name, uint64_t n)
{
	json_object_object_add(o, name, json_object_new_uint64(n));
}

static struct json_object *json_percentiles(const struct csf_hist *h, bool upper)
{
	struct json_object *o = json_object_new_object();
	unsigned int i;

	for (i = 0; i < CSF_PERCENTILES; i++) {
		struct csf_range r = csf_hist_percentile(h, csf_percentiles[i].per_mille);

		add_number(o, csf_percentiles[i].json, upper ? r.hi_ns : r.lo_ns);
	}
	return o;
}

static struct json_object *json_buckets(const struct csf_hist *h)
{
	struct csf_hist edges = { .unit_ns = h->unit_ns, .coarse = true };
	struct json_object *all = json_object_new_array(), *o;
	unsigned int i;

	csf_hist_fold(edges.slots, h);
	for (i = 0; i < CSF_ROW_SLOTS; i++) {
		if (!edges.slots[i])
			continue;
		o = json_object_new_object();
		add_number(o, "lo_ns", csf_hist_slot(&edges, i).lo_ns);
		add_number(o, "hi_ns", csf_hist_slot(&edges, i).hi_ns);
		add_number(o, "count", edges.slots[i]);
		json_object_array_add(all, o);
	}
	return all;
}

void csf_hist_json(struct json_object *o, const struct csf_hist *h)
{
	add_number(o, "samples", csf_hist_samples(h));
	add_number(o, "total_wait_ns", h->total_ns);
	add_number(o, "max_ns", h->max_ns);
	json_object_object_add(o, "percentiles_ns", json_percentiles(h, true));
	json_object_object_add(o, "percentiles_above_ns", json_percentiles(h, false));
	json_object_object_add(o, "buckets", json_buckets(h));
}
