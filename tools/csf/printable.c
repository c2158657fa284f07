// SPDX-License-Identifier: GPL-2.0
#include "printable.h"

#include <stdint.h>
#include <string.h>

/* Bytes of the character that begins here; 0 if none does. Not overlong, no surrogate, no control character. */
static size_t character(const unsigned char *s, size_t left)
{
	static const uint32_t least[] = { 0, 0x20, 0xa0, 0x800, 0x10000 };
	size_t len = s[0] < 0x80     ? 1 :
		     s[0] >> 5 == 6  ? 2 :
		     s[0] >> 4 == 14 ? 3 :
		     s[0] >> 3 == 30 ? 4 :
				       0,
	       i;
	uint32_t c = len == 1 ? s[0] : s[0] & (0x7f >> len);

	if (!len || len > left)
		return 0;
	for (i = 1; i < len; i++) {
		if (s[i] >> 6 != 2)
			return 0;
		c = c << 6 | (s[i] & 0x3f);
	}
	if (c < least[len] || c == 0x7f || (c >= 0xd800 && c < 0xe000) || c > 0x10ffff)
		return 0;
	return len;
}

void csf_make_printable(char *name, size_t size)
{
	size_t len = strnlen(name, size), i = 0, n;

	while (i < len) {
		n = character((unsigned char *)name + i, len - i);
		if (!n)
			name[i] = '?';
		i += n ? n : 1;
	}
}
