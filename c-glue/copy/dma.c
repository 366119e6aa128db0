// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: what Rust calls of dmaengine and of the DMA mapping API, most of which
 * is inline. Nothing is decided here.
 *
 * Channels are taken, stopped and given back, and waited for, in contexts that
 * may sleep. All else is for any context but NMI.
 *
 * Locks: the lock of an engine's device, from when a channel is asked for until
 * somebody has it, so that its driver stays; taken under dma_list_mutex, but only
 * if it is free. Notifiers of a bus run under it, and in it under the lock of the
 * chain, outside of what ferry_dma_leave() takes. ferry_dma_buses_lock, around the
 * registration of a notifier, is taken with none of these.
 */
#include <linux/ferry_dma.h>
#include <linux/device/bus.h>
#include <linux/dma-mapping.h>
#include <linux/dmaengine.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/string.h>
#include <linux/suspend.h>

#include <kunit/visibility.h>
#include <linux/sysfs.h>
#include <linux/wait.h>

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

/* Is it heard of drivers that leave devices of a bus? */
static bool ferry_dma_watched(const struct bus_type *bus)
{
	struct ferry_dma_bus *slot;

	for (slot = ferry_dma_buses; slot < ARRAY_END(ferry_dma_buses); slot++) {
		/* Pairs with the release when it was registered. */
		if (smp_load_acquire(&slot->bus) == bus)
			return true;
	}
	return false;
}

/* Makes it so. False: it cannot be. */
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
		/* Who sees it is notified. */
		smp_store_release(&slot->bus, bus);
		return true;
	}
	return false;
}

/**
 * struct ferry_dma_search - the search for a channel
 * @locked:	the device of the channel that was offered last
 * @unwatched:	a bus that has one, but is not watched
 * @hopeless:	no more buses can be watched
 */
struct ferry_dma_search {
	struct device *locked;
	const struct bus_type *unwatched;
	bool hopeless;
};

/* Is a channel one that can be used, and be parted with? Under dma_list_mutex. */
static bool ferry_dma_suits(struct dma_chan *chan, void *param)
{
	struct device *dev = chan->device->dev;
	struct ferry_dma_search *search = param;

	/*
	 * idxd lets go of channels without a word on any bus of theirs, waits in
	 * prep for as long as it takes, and cannot use them once terminated.
	 */
	if (dma_has_cap(DMA_COMPLETION_NO_ORDER, chan->device->cap_mask))
		return false;
	/* Through bounce buffers it takes two copies by a CPU. */
	if (!dev->bus || dma_addressing_limited(dev) ||
	    dma_max_mapping_size(dev) != SIZE_MAX)
		return false;
	if (!ferry_dma_watched(dev->bus)) {
		if (!search->hopeless)
			search->unwatched = dev->bus;
		return false;
	}
	if (search->locked == dev)
		return true;
	ferry_dma_requested(search->locked);
	/* If somebody has it, its driver may be about to leave. */
	search->locked = device_trylock(dev) ? dev : NULL;
	return search->locked;
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

/*
 * A channel that copies memory, for us alone; NULL: none is left. Its device is
 * locked, so that its driver stays, until ferry_dma_requested().
 */
struct dma_chan *ferry_dma_request(struct device **locked)
{
	struct ferry_dma_search search = {};
	struct dma_chan *chan;
	dma_cap_mask_t mask;

	dma_cap_zero(mask);
	dma_cap_set(DMA_MEMCPY, mask);
	for (;;) {
		search.unwatched = NULL;
		chan = __dma_request_channel(&mask, ferry_dma_suits, &search, NULL);
		if (chan)
			break;
		ferry_dma_requested(search.locked);
		search.locked = NULL;
		if (!search.unwatched)
			break;
		search.hopeless = !ferry_dma_watch(search.unwatched);
	}
	*locked = search.locked;
	return chan;
}

void ferry_dma_requested(struct device *locked)
{
	if (locked)
		device_unlock(locked);
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
 * Is all there is to some pages of a folio in their bytes, and readable? What an
 * engine copies comes without tags and without what KMSAN knows, and what it does
 * with poison only it knows.
 */
bool ferry_dma_reaches(const struct folio *folio, unsigned long first,
		       unsigned long nr)
{
#ifdef CONFIG_ARM64_MTE
	unsigned long i;

	for (i = first; system_supports_mte() && i < first + nr; i++) {
		if (page_mte_tagged(folio_page((struct folio *)folio, i)))
			return false;
	}
#endif
	if (folio_test_hwpoison(folio) ||
	    (folio_test_large(folio) && folio_test_has_hwpoisoned(folio)))
		return false;
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

/* Answers so far, of all engines, and who waits for one. */
static atomic_t ferry_dma_nr_answers;
static DECLARE_WAIT_QUEUE_HEAD(ferry_dma_waiters);

static void ferry_dma_callback(void *param, const struct dmaengine_result *result)
{
	/* Has release order: the driver's accesses for the copy come before. */
	ferry_dma_answer(param, result->result == DMA_TRANS_NOERROR);
	/* Release: a task that sees the new number sees the answer. */
	atomic_fetch_inc_release(&ferry_dma_nr_answers);
	/* Has a barrier: whoever is not seen to wait sees the new number. */
	if (wq_has_sleeper(&ferry_dma_waiters))
		wake_up_all(&ferry_dma_waiters);
}

/*
 * Hands a copy to the engine, which begins when ferry_dma_issue() is called at
 * the latest. False: it takes no more, and will not answer.
 */
bool ferry_dma_submit(struct dma_chan *chan, const struct ferry_dma_range *range,
		      void *ticket)
{
	struct dma_async_tx_descriptor *tx;

	tx = dmaengine_prep_dma_memcpy(chan, range->dst, range->src, range->len,
				       DMA_PREP_INTERRUPT | DMA_CTRL_ACK);
	if (!tx)
		return false;
	tx->callback_result = ferry_dma_callback;
	tx->callback_param = ticket;
	return !dma_submit_error(dmaengine_submit(tx));
}

void ferry_dma_issue(struct dma_chan *chan)
{
	dma_async_issue_pending(chan);
}

/* To be asked for before one looks for answers, and then waits for another. */
unsigned int ferry_dma_answers(void)
{
	/* With a barrier, as what follows is not to be looked at before. */
	return atomic_read_acquire(&ferry_dma_nr_answers);
}

/* Until there were more answers than so many, of any engine. */
void ferry_dma_wait(unsigned int answers, unsigned int us)
{
	wait_event_timeout(ferry_dma_waiters,
			   atomic_read(&ferry_dma_nr_answers) != answers,
			   usecs_to_jiffies(us));
}

/*
 * Drivers that have stopped the hardware when they say so. Most have forgotten
 * the descriptors by then, and no more: what was given up must not be freed on
 * their word. Add none whose terminate_all and synchronize were not read for it.
 */
static const char * const ferry_dma_stoppers[] = { "ferry_soft_dma" };

/*
 * Stops the engine. True: no copy of this channel is under way any more, and no
 * answer. False: nobody knows; nothing was done.
 */
bool ferry_dma_stop(struct dma_chan *chan)
{
	const struct device_driver *driver = ferry_dma_device(chan)->driver;

	return driver &&
	       match_string(ferry_dma_stoppers, ARRAY_SIZE(ferry_dma_stoppers),
			    driver->name) >= 0 &&
	       !dmaengine_terminate_sync(chan);
}

/* Between the preparation of a suspend and its end: devices come and go. */
static bool ferry_dma_suspends;

bool ferry_dma_asleep(void)
{
	return READ_ONCE(ferry_dma_suspends);
}

VISIBLE_IF_KUNIT int ferry_dma_pm(struct notifier_block *nb,
				  unsigned long event, void *data)
{
	switch (event) {
	case PM_SUSPEND_PREPARE:
	case PM_HIBERNATION_PREPARE:
	case PM_RESTORE_PREPARE:
		WRITE_ONCE(ferry_dma_suspends, true);
		break;
	case PM_POST_SUSPEND:
	case PM_POST_HIBERNATION:
	case PM_POST_RESTORE:
		WRITE_ONCE(ferry_dma_suspends, false);
		break;
	}
	return NOTIFY_OK;
}

static int __init ferry_dma_init(void)
{
	pm_notifier(ferry_dma_pm, 0);
	return 0;
}
late_initcall(ferry_dma_init);
