// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: what Rust calls of dmaengine and of the DMA mapping API, most of which
 * is inline. Nothing is decided here.
 *
 * Channels are taken, stopped and given back, and waited for, in contexts that
 * may sleep. All else is for any context but NMI.
 *
 * Locks: ferry_dma_buses_lock, around the registration of a notifier. The
 * notifiers run under the lock of their bus's chain, which is thus outside of
 * what ferry_dma_leave() takes.
 */
#include <linux/ferry_dma.h>
#include <linux/device/bus.h>
#include <linux/dma-mapping.h>
#include <linux/dmaengine.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/sysfs.h>

#ifdef CONFIG_ARM64_MTE
#include <asm/mte.h>
#endif

/* Buses that engines are on: platform, PCI, and what else there may be. */
static struct ferry_dma_bus {
	const struct bus_type *bus;
	struct notifier_block nb;
} ferry_dma_buses[4];

static DEFINE_MUTEX(ferry_dma_buses_lock);

static int ferry_dma_bus_event(struct notifier_block *nb, unsigned long event,
			       void *dev)
{
	/* Before its driver goes, as one does not of itself wait for clients. */
	if (event == BUS_NOTIFY_UNBIND_DRIVER)
		ferry_dma_leave(dev);
	return NOTIFY_OK;
}

/* Hears of drivers that leave devices of a bus. False: it cannot. */
static bool ferry_dma_watch(const struct bus_type *bus)
{
	struct ferry_dma_bus *slot;

	guard(mutex)(&ferry_dma_buses_lock);
	for (slot = ferry_dma_buses; slot < ARRAY_END(ferry_dma_buses); slot++) {
		if (slot->bus == bus)
			return true;
		if (slot->bus)
			continue;
		slot->nb.notifier_call = ferry_dma_bus_event;
		if (bus_register_notifier(bus, &slot->nb))
			return false;
		slot->bus = bus;
		return true;
	}
	return false;
}

/* A line of copy/dma_status. */
int ferry_dma_emit(char *buf, int at, const char *name, int node,
		   const struct ferry_dma_counts *counts)
{
	return sysfs_emit_at(buf, at,
			     "%s node=%d copies=%llu bytes=%llu errors=%llu timeouts=%llu refused=%llu parked=%u\n",
			     name, node, counts->copies, counts->bytes,
			     counts->errors, counts->timeouts, counts->refused,
			     counts->parked);
}

/* A channel that copies memory, for us alone; NULL: none is left. */
struct dma_chan *ferry_dma_request(void)
{
	struct dma_chan *chan;
	dma_cap_mask_t mask;

	dma_cap_zero(mask);
	dma_cap_set(DMA_MEMCPY, mask);
	chan = __dma_request_channel(&mask, NULL, NULL, NULL);
	if (chan && !ferry_dma_watch(ferry_dma_device(chan)->bus)) {
		dma_release_channel(chan);
		return NULL;
	}
	return chan;
}

void ferry_dma_release(struct dma_chan *chan)
{
	dma_release_channel(chan);
}

int ferry_dma_node(struct dma_chan *chan)
{
	return dev_to_node(ferry_dma_device(chan));
}

const char *ferry_dma_name(struct dma_chan *chan)
{
	return dma_chan_name(chan);
}

struct device *ferry_dma_device(struct dma_chan *chan)
{
	return chan->device->dev;
}

/*
 * Is all of a folio in its bytes? What an engine copies comes without tags and
 * without what KMSAN knows.
 */
bool ferry_dma_reaches(const struct folio *folio)
{
#ifdef CONFIG_ARM64_MTE
	const unsigned long nr = folio_nr_pages(folio);
	unsigned long i;

	for (i = 0; system_supports_mte() && i < nr; i++) {
		if (page_mte_tagged(folio_page((struct folio *)folio, i)))
			return false;
	}
#endif
	return !IS_ENABLED(CONFIG_KMSAN) && !IS_ENABLED(CONFIG_KASAN_HW_TAGS);
}

/*
 * Maps the same pages of two folios for a copy. Each is one piece of memory and
 * so one for the device: there is nothing to merge.
 */
bool ferry_dma_map(struct dma_chan *chan, struct folio *dst, struct folio *src,
		   unsigned long first, unsigned long nr,
		   struct ferry_dma_range *range)
{
	struct device *dev = dmaengine_get_dma_device(chan);

	range->len = nr * PAGE_SIZE;
	range->src = dma_map_page(dev, folio_page(src, first), 0, range->len,
				  DMA_TO_DEVICE);
	if (dma_mapping_error(dev, range->src))
		return false;
	range->dst = dma_map_page(dev, folio_page(dst, first), 0, range->len,
				  DMA_FROM_DEVICE);
	if (!dma_mapping_error(dev, range->dst))
		return true;
	dma_unmap_page(dev, range->src, range->len, DMA_TO_DEVICE);
	return false;
}

/* What a bounce buffer has is copied to the destination here. */
void ferry_dma_unmap(struct dma_chan *chan, const struct ferry_dma_range *range)
{
	struct device *dev = dmaengine_get_dma_device(chan);

	dma_unmap_page(dev, range->dst, range->len, DMA_FROM_DEVICE);
	dma_unmap_page(dev, range->src, range->len, DMA_TO_DEVICE);
}

void ferry_dma_ticket_init(struct ferry_dma_ticket *ticket)
{
	init_completion(&ticket->answered);
	ticket->good = false;
}

static void ferry_dma_answer(void *param, const struct dmaengine_result *result)
{
	struct ferry_dma_ticket *ticket = param;

	ticket->good = result->result == DMA_TRANS_NOERROR;
	complete_all(&ticket->answered);
}

/*
 * Hands a copy to the engine, which begins when ferry_dma_issue() is called at
 * the latest. False: it takes no more, and will not answer.
 */
bool ferry_dma_submit(struct dma_chan *chan, const struct ferry_dma_range *range,
		      struct ferry_dma_ticket *ticket)
{
	struct dma_async_tx_descriptor *tx;

	tx = dmaengine_prep_dma_memcpy(chan, range->dst, range->src, range->len,
				       DMA_PREP_INTERRUPT | DMA_CTRL_ACK);
	if (!tx)
		return false;
	reinit_completion(&ticket->answered);
	tx->callback_result = ferry_dma_answer;
	tx->callback_param = ticket;
	return !dma_submit_error(dmaengine_submit(tx));
}

void ferry_dma_issue(struct dma_chan *chan)
{
	dma_async_issue_pending(chan);
}

/* If so, ticket->good says what. */
bool ferry_dma_answered(struct ferry_dma_ticket *ticket)
{
	return completion_done(&ticket->answered);
}

void ferry_dma_wait(struct ferry_dma_ticket *ticket, unsigned int us)
{
	wait_for_completion_timeout(&ticket->answered, usecs_to_jiffies(us));
}

/*
 * Stops the engine. True: no copy of this channel is under way any more, and no
 * answer. False: the driver cannot stop it, or not wait until it has stopped.
 */
bool ferry_dma_stop(struct dma_chan *chan)
{
	return chan->device->device_synchronize &&
	       !dmaengine_terminate_sync(chan);
}
