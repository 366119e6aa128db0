/* SPDX-License-Identifier: GPL-2.0-only */
/* Ferry: interface between Rust and C for DMA copies. */
#ifndef _LINUX_FERRY_DMA_H
#define _LINUX_FERRY_DMA_H

#include <linux/types.h>

struct device;
struct dma_chan;
struct folio;

/* copy/dma_channels */
#define FERRY_MAX_CHANNELS	16

/**
 * struct ferry_dma_range - a copy in the addresses of a device
 * @dst: destination
 * @src: source
 * @len: bytes
 */
struct ferry_dma_range {
	dma_addr_t dst;
	dma_addr_t src;
	size_t len;
};

/**
 * struct ferry_dma_counts - work of a channel since it was taken
 * @copies: completed copies
 * @bytes: bytes of these
 * @errors: failed copies
 * @timeouts: copies that timed out
 * @refused: copies that the channel did not accept
 * @parked: copies that timed out and may still be in flight
 */
struct ferry_dma_counts {
	u64 copies;
	u64 bytes;
	u64 errors;
	u64 timeouts;
	u64 refused;
	u32 parked;
};

/* c-glue/copy/dma.c */
struct dma_chan *ferry_dma_request(struct device **locked);
void ferry_dma_requested(struct device *locked);
void ferry_dma_release(struct dma_chan *chan);
int ferry_dma_node(struct dma_chan *chan);
const char *ferry_dma_name(struct dma_chan *chan);
struct device *ferry_dma_device(struct dma_chan *chan);
bool ferry_dma_reaches(const struct folio *folio, unsigned long first,
		       unsigned long nr);
bool ferry_dma_map(struct dma_chan *chan, struct folio *dst, struct folio *src,
		   unsigned long first, unsigned long nr,
		   struct ferry_dma_range *range);
void ferry_dma_unmap(struct dma_chan *chan, const struct ferry_dma_range *range);
bool ferry_dma_submit(struct dma_chan *chan, const struct ferry_dma_range *range,
		      void *ticket);
void ferry_dma_issue(struct dma_chan *chan);
unsigned int ferry_dma_answers(void);
void ferry_dma_wait(unsigned int answers, unsigned int us);
bool ferry_dma_stop(struct dma_chan *chan);
bool ferry_dma_asleep(void);

int ferry_dma_emit(char *buf, int at, const char *name, int node,
		   const struct ferry_dma_counts *counts);

/**
 * struct ferry_soft_manners - behaviour of the DMA engine of
 * c-glue/tests/soft_dma.c
 * @delay_us: see there, like the others
 * @fail_ppm: "
 * @descriptors: "
 * @reverse: "
 * @mute: "
 */
struct ferry_soft_manners {
	unsigned int delay_us;
	unsigned int fail_ppm;
	unsigned int descriptors;
	bool reverse;
	bool mute;
};

/* c-glue/copy/dma.c */
#if IS_ENABLED(CONFIG_KUNIT)
struct notifier_block;
int ferry_dma_pm(struct notifier_block *nb, unsigned long event, void *data);
#endif

/* c-glue/tests/soft_dma.c */
void ferry_soft_behave(const struct ferry_soft_manners *manners);

/* rust/copy/hooks.rs */
unsigned int ferry_dma_nr_open(void);
int ferry_dma_tell(unsigned int nr, char *buf, int at);
void ferry_dma_answer(const void *ticket, bool good);
void ferry_dma_leave(struct device *dev);

#endif /* _LINUX_FERRY_DMA_H */
