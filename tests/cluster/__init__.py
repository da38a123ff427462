"""Jobs on several hosts: network namespaces with a real Ray; see `hosts`."""
